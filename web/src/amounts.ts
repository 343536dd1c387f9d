// Amounts for people.
export function bytes(amount: number): string {
  const units = ["B", "KiB", "MiB", "GiB", "TiB"];
  let at = 0;
  while (amount >= 1024 && at < units.length - 1) {
    amount /= 1024;
    at += 1;
  }
  return `${amount >= 100 || Number.isInteger(amount) ? Math.round(amount) : amount.toFixed(1)} ${units[at] ?? ""}`;
}

export function cores(amount: number): string {
  return Number.isInteger(amount) ? String(amount) : amount.toFixed(2);
}

export function rate(bits: number): string {
  if (bits >= 1e9) return `${(bits / 1e9).toFixed(1)} Gbit/s`;
  if (bits >= 1e6) return `${(bits / 1e6).toFixed(1)} Mbit/s`;
  if (bits >= 1e3) return `${(bits / 1e3).toFixed(0)} kbit/s`;
  return `${Math.round(bits)} bit/s`;
}

/** Links are counted in bits, people think of files in bytes. */
export function byteRate(bits: number): string {
  return `${bytes(bits / 8)}/s`;
}
