// Texts of the page in the language that was chosen. The texts themselves: catalogues/.
import { signal } from "@preact/signals";

import { en, type Key } from "./catalogues/en";
import { zh } from "./catalogues/zh";

export type { Key };

export type Language = "en" | "zh";
const catalogues: Record<Language, Record<Key, string>> = { en, zh };

function preferred(): Language {
  const kept = localStorage.getItem("language");
  if (kept === "en" || kept === "zh") return kept;
  return navigator.language.startsWith("zh") ? "zh" : "en";
}

export const language = signal<Language>(preferred());

export function choose(next: Language): void {
  language.value = next;
  localStorage.setItem("language", next);
  document.documentElement.lang = next;
}

/** For dates: as the person writes the chosen language. */
export function locale(): string {
  return navigator.language.startsWith(language.value) ? navigator.language : language.value;
}

export function t(key: Key, values: Record<string, string | number> = {}): string {
  return catalogues[language.value][key].replace(/\{(\w+)\}/g, (whole, name: string) => String(values[name] ?? whole));
}
