// The keys of the page, shown by `?`.
import { signal } from "@preact/signals";
import { useLayoutEffect, useRef } from "preact/hooks";
import { go } from "./router";
import { t, type Key } from "./text";

export const helpShown = signal(false);

const KEYS: [string, Key][] = [
  ["?", "keyHelp"],
  ["/", "keyFilter"],
  ["j k ↓ ↑", "keyRows"],
  ["Enter", "keyOpen"],
  ["x", "keyPick"],
  ["← →", "keyTabs"],
  ["g o", "overview"],
  ["g j", "jobs"],
  ["g n", "network"],
  ["g d", "data"],
  ["g a", "approvals"],
  ["g p", "nodes"],
  ["g f", "functions"],
  ["g e", "evidence"],
  ["c", "newJob"],
  ["Esc", "close"],
];

const PLACES: Record<string, string> = { o: "/", j: "/jobs", n: "/network", d: "/data", a: "/approvals", p: "/nodes", f: "/functions", e: "/evidence" };
let going = 0;

/** Whether the key was one of ours. */
export function pressed(key: string): boolean {
  if (key === "Escape" && helpShown.value) helpShown.value = false;
  else if (key === "?") helpShown.value = !helpShown.value;
  else if (Date.now() - going < 1500 && PLACES[key] !== undefined) {
    going = 0;
    go(PLACES[key] ?? "/");
  } else if (key === "g") going = Date.now();
  else if (key === "c") go("/compose");
  else return false;
  return true;
}

export function Help() {
  const box = useRef<HTMLDialogElement>(null);
  const open = helpShown.value;
  // At once: what is behind an open dialog can have no focus, and the next key may lead to another screen.
  useLayoutEffect(() => {
    if (open) box.current?.showModal();
    else box.current?.close();
  }, [open]);
  return (
    <dialog
      ref={box}
      class="help"
      aria-labelledby="help-title"
      onClose={() => {
        helpShown.value = false;
      }}
    >
      <h2 id="help-title">{t("keys")}</h2>
      <dl class="facts">
        {KEYS.map(([keys, what]) => (
          <>
            <dt>
              {keys.split(" ").map((each) => (
                <kbd>{each}</kbd>
              ))}
            </dt>
            <dd>{t(what)}</dd>
          </>
        ))}
      </dl>
      <p>
        <button
          type="button"
          onClick={() => {
            helpShown.value = false;
          }}
        >
          {t("close")}
        </button>
      </p>
    </dialog>
  );
}
