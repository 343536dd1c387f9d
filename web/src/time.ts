// Times for people: relative, with the exact one at hand.
import { computed, signal } from "@preact/signals";
import { locale, t } from "./text";

export const now = signal(Date.now());
setInterval(() => {
  if (!document.hidden) now.value = Date.now();
}, 1000);

/** For what need not be drawn again each second. */
export const minute = computed(() => Math.floor(now.value / 60000));

export function ago(moment: string): string {
  const seconds = Math.max(0, Math.round((now.value - Date.parse(moment)) / 1000));
  if (Number.isNaN(seconds)) return "";
  if (seconds < 5) return t("justNow");
  if (seconds < 120) return t("secondsAgo", { n: seconds });
  if (seconds < 7200) return t("minutesAgo", { n: Math.round(seconds / 60) });
  if (seconds < 172800) return t("hoursAgo", { n: Math.round(seconds / 3600) });
  return t("daysAgo", { n: Math.round(seconds / 86400) });
}

/** In the time zone of the person, with the zone; for hints. */
export function exact(moment: string): string {
  const time = new Date(moment);
  return Number.isNaN(time.getTime()) ? moment : `${time.toLocaleString(locale(), { dateStyle: "medium", timeStyle: "long" })} (${moment})`;
}

/** From now on: days until something ends, negative when it has. */
export function daysUntil(moment: string): number {
  return Math.floor((Date.parse(moment) - minute.value * 60000) / 86400000);
}

/** How long something is still good: in hours when that is less than two days. */
export function left(moment: string): string {
  const hours = Math.max(0, Math.floor((Date.parse(moment) - minute.value * 60000) / 3600000));
  return hours < 48 ? `${hours} h` : t("days", { n: Math.floor(hours / 24) });
}

export function span(from: string, to: string): string {
  const seconds = ((to ? Date.parse(to) : now.value) - Date.parse(from)) / 1000;
  if (Number.isNaN(seconds)) return "";
  if (seconds < 9.95) return `${Math.max(0, seconds).toFixed(1)} s`;
  const whole = Math.round(seconds);
  if (whole < 60) return `${whole} s`;
  if (whole < 3600) return `${Math.floor(whole / 60)} min ${whole % 60} s`;
  const minutes = Math.round(whole / 60);
  return `${Math.floor(minutes / 60)} h ${minutes % 60} min`;
}
