// Commands that people copy into a shell: what comes from elsewhere (names, columns, the address) is quoted.

const PLAIN = /^[\w@%+=:,./-]+$/;

export function quoted(text: string): string {
  return PLAIN.test(text) ? text : `'${text.replaceAll("'", `'\\''`)}'`;
}
