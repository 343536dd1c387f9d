// A terminal in a container, on a page of its own: it asks before it opens, and shows what the command writes.
import "@xterm/xterm/css/xterm.css";
import { FitAddon } from "@xterm/addon-fit";
import { Terminal } from "@xterm/xterm";
import { render } from "preact";
import { useEffect, useRef, useState } from "preact/hooks";
import { execCommand } from "./commands";
import { AsCommand } from "./parts";
import { begin, session } from "./session";
import { choose, language, t } from "./text";
import { applyTheme } from "./theme";

const STDIN = 0;
const STDOUT = 1;
const END = 3;
const RESIZE = 4;

const params = new URLSearchParams(location.search);
const namespace = params.get("namespace") ?? "";
const pod = params.get("pod") ?? "";
const container = params.get("container") ?? "";

function Page() {
  const [command, setCommand] = useState("sh");
  const [opened, setOpened] = useState(0);
  const [ended, setEnded] = useState("");
  if (session.value === null) return <main class="login">{t("loggedOut")}</main>;
  if (!session.value.exec) return <main class="login">{t("noExec")}</main>;
  return (
    <main class="exec-page">
      <form
        class="tools"
        onSubmit={(event) => {
          event.preventDefault();
          setEnded("");
          setOpened(opened + 1);
        }}
      >
        <h1>{opened && !ended ? t("terminal") : t("openTerminal")}</h1>
        <span class="mono">
          {namespace}/{pod}/{container}
        </span>
        {opened && !ended ? null : (
          <>
            <label class="choice">
              <span>{t("command")}</span>
              <input class="mono" value={command} onInput={(event) => setCommand(event.currentTarget.value)} />
            </label>
            <button type="submit" class="first">
              {t("open")}
            </button>
            <span class="dim">{t("terminalRecorded")}</span>
          </>
        )}
        {ended ? (
          <span class="bad message" role="alert">
            {ended}
          </span>
        ) : null}
      </form>
      <AsCommand command={execCommand(namespace, pod, container, command)} />
      {opened ? <Shell key={opened} command={command} ended={setEnded} /> : null}
    </main>
  );
}

function Shell({ command, ended }: { command: string; ended(why: string): void }) {
  const box = useRef<HTMLDivElement>(null);
  useEffect(() => {
    const element = box.current;
    if (!element) return;
    const colours = getComputedStyle(document.documentElement);
    const body = getComputedStyle(document.body);
    const terminal = new Terminal({
      fontFamily: colours.getPropertyValue("--mono"),
      fontSize: 13,
      cursorBlink: false,
      scrollback: 5000,
      // What runs in a container may print links; here they lead nowhere.
      linkHandler: { activate: () => undefined },
      theme: { background: body.backgroundColor, foreground: body.color, cursor: body.color },
    });
    const fit = new FitAddon();
    terminal.loadAddon(fit);
    terminal.open(element);
    fit.fit();
    const scheme = location.protocol === "https:" ? "wss" : "ws";
    const socket = new WebSocket(`${scheme}://${location.host}/exec`);
    socket.binaryType = "arraybuffer";
    const early: string[] = [];
    const type = (text: string): void => socket.send(framed(STDIN, new TextEncoder().encode(text)));
    let over = false;
    const finish = (why: string): void => {
      if (over) return;
      over = true;
      ended(why);
    };
    const resize = (): void => {
      fit.fit();
      if (socket.readyState === WebSocket.OPEN) socket.send(framed(RESIZE, new TextEncoder().encode(JSON.stringify({ columns: terminal.cols, rows: terminal.rows }))));
    };
    socket.onopen = () => {
      socket.send(JSON.stringify({ csrf: session.value?.csrf ?? "", namespace, pod, container, command: command.split(/\s+/).filter(Boolean) }));
      resize();
      for (const text of early.splice(0)) type(text);
    };
    socket.onmessage = (event) => {
      const data = new Uint8Array(event.data as ArrayBuffer);
      if (data[0] === STDOUT) terminal.write(data.subarray(1));
      else if (data[0] === END) {
        const about = JSON.parse(new TextDecoder().decode(data.subarray(1))) as { code?: number; problem?: string };
        finish(about.problem ?? t("terminalEnded", { code: about.code ?? 0 }));
      }
    };
    socket.onclose = () => finish(t("lostTerminal"));
    const input = terminal.onData((text) => {
      if (socket.readyState === WebSocket.CONNECTING) early.push(text);
      else if (socket.readyState === WebSocket.OPEN) type(text);
    });
    terminal.focus();
    const observer = new ResizeObserver(resize);
    observer.observe(element);
    return () => {
      over = true;
      observer.disconnect();
      input.dispose();
      socket.close();
      terminal.dispose();
    };
  }, []);
  return <div class="screen" ref={box} />;
}

function framed(channel: number, data: Uint8Array): ArrayBuffer {
  const out = new Uint8Array(data.length + 1);
  out[0] = channel;
  out.set(data, 1);
  return out.buffer as ArrayBuffer;
}

choose(language.value);
applyTheme();
document.title = `${pod} – ${t("terminal")}`;
void begin().then(() => render(<Page />, document.getElementById("terminal") as HTMLElement));
