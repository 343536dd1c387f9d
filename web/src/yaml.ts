// Objects as YAML, for reading. Text is quoted whenever it could be taken for something else.
export function yaml(value: unknown, indent = ""): string {
  if (value === null || value === undefined) return "null";
  if (Array.isArray(value)) {
    if (value.length === 0) return "[]";
    return value.map((each) => `${indent}- ${nested(each, `${indent}  `).trimStart()}`).join("\n");
  }
  if (typeof value === "object") {
    const entries = Object.entries(value as Record<string, unknown>).filter(([, each]) => each !== undefined);
    if (entries.length === 0) return "{}";
    return entries
      .map(([key, each]) => {
        const text = nested(each, `${indent}  `);
        return isBlock(each) ? `${indent}${plain(key)}:\n${text}` : `${indent}${plain(key)}: ${text.trimStart()}`;
      })
      .join("\n");
  }
  return typeof value === "string" ? plain(value) : String(value);
}

function isBlock(value: unknown): boolean {
  return typeof value === "object" && value !== null && (Array.isArray(value) ? value.length > 0 : Object.keys(value).length > 0);
}

function nested(value: unknown, indent: string): string {
  if (typeof value === "string" && isLines(value)) {
    const lines = value.replace(/\n$/, "").split("\n");
    return [value.endsWith("\n") ? "|" : "|-", ...lines.map((line) => (line ? indent + line : ""))].join("\n");
  }
  return isBlock(value) ? yaml(value, indent) : yaml(value);
}

/** Text that YAML can have as it is, line by line. */
function isLines(text: string): boolean {
  return /^[^ \n][^]*\n/.test(text) && !text.endsWith("\n\n") && !/[\x00-\x09\x0b-\x1f\x7f-\x9f\u2028\u2029\ufeff]/.test(text);
}

function plain(text: string): string {
  const safe = /^[A-Za-z_/][A-Za-z0-9_./ -]*$/.test(text) && !/^(true|false|null|yes|no|on|off)$/i.test(text) && !text.endsWith(" ");
  return safe ? text : JSON.stringify(text);
}
