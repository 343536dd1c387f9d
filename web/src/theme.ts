// Light, dark, or as the system has it.
import { signal } from "@preact/signals";

export type Theme = "system" | "light" | "dark";
const NEXT: Record<Theme, Theme> = { system: "light", light: "dark", dark: "system" };

function kept(): Theme {
  const found = localStorage.getItem("theme");
  return found === "light" || found === "dark" ? found : "system";
}

export const theme = signal<Theme>(kept());

export function applyTheme(): void {
  const root = document.documentElement;
  if (theme.value === "system") root.removeAttribute("data-theme");
  else root.setAttribute("data-theme", theme.value);
}

export function nextTheme(): void {
  theme.value = NEXT[theme.value];
  localStorage.setItem("theme", theme.value);
  applyTheme();
}
