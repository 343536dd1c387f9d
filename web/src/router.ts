// Addresses of the page: every view has one.
import { signal } from "@preact/signals";

export const address = signal(new URL(location.href));

addEventListener("popstate", () => {
  address.value = new URL(location.href);
});

/** Clicks on links of ours change the view without loading the page again. */
addEventListener("click", (event) => {
  const link = (event.target as Element | null)?.closest?.("a[href]");
  if (!link || event.defaultPrevented || event.button !== 0 || event.metaKey || event.ctrlKey || event.shiftKey) return;
  const url = new URL((link as HTMLAnchorElement).href);
  if (url.origin !== location.origin || link.hasAttribute("download") || link.hasAttribute("target")) return;
  event.preventDefault();
  go(url.pathname + url.search);
});

export function go(path: string, replace = false): void {
  if (replace) history.replaceState(null, "", path);
  else history.pushState(null, "", path);
  address.value = new URL(location.href);
}

/** A word of the address: `/jobs/NAME` has NAME as its second. What is no encoding stays as it is. */
export function word(number: number): string {
  const found = address.value.pathname.split("/")[number] ?? "";
  try {
    return decodeURIComponent(found);
  } catch {
    return found;
  }
}

/** Changes one part of the query and keeps the rest: filters stay in the address. */
export function setQuery(name: string, value: string): void {
  const next = new URL(address.value);
  if (value) next.searchParams.set(name, value);
  else next.searchParams.delete(name);
  go(next.pathname + next.search, true);
}
