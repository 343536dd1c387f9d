// Builds the page into the Python package. The output is the same bytes on every machine, so it is committed and checked.
import { build } from "esbuild";
import { createHash } from "node:crypto";
import { cpSync, mkdirSync, readdirSync, readFileSync, rmSync, statSync, writeFileSync } from "node:fs";
import { basename, dirname, join, relative } from "node:path";
import { fileURLToPath } from "node:url";

const here = dirname(fileURLToPath(import.meta.url));
const out = process.argv[2] ?? join(here, "..", "src", "coterie", "console", "static");

rmSync(out, { recursive: true, force: true });
mkdirSync(out, { recursive: true });
const options = {
  absWorkingDir: here,
  outdir: out,
  bundle: true,
  minify: true,
  format: "esm",
  target: "es2022",
  jsx: "automatic",
  jsxImportSource: "preact",
  legalComments: "none",
};
const made = await build({ ...options, entryPoints: ["src/app.tsx"], splitting: true, chunkNames: "[name]-[hash]", write: false });
writeWithPlainNames(made.outputFiles);
// A page of its own, so that its library and its policy concern nothing else.
await build({ ...options, entryPoints: ["src/terminal.tsx"] });
cpSync(join(here, "terminal.html"), join(out, "terminal.html"));
cpSync(join(here, "index.html"), join(out, "index.html"));
cpSync(join(here, "style.css"), join(out, "style.css"));
cpSync(join(here, "icon.svg"), join(out, "icon.svg"));
const fonts = readdirSync(join(here, "fonts")).sort();
for (const name of fonts.filter((each) => each.endsWith(".woff2"))) cpSync(join(here, "fonts", name), join(out, name));

// What is bundled is others' work: their licences go with it.
const bundled = ["preact", "@preact/signals", "@preact/signals-core", "@dagrejs/dagre", "@dagrejs/graphlib", "@xterm/xterm", "@xterm/addon-fit", "uplot"];
const licences = bundled.map((name) => {
  const folder = join(here, "node_modules", ...name.split("/"));
  const { version } = JSON.parse(readFileSync(join(folder, "package.json"), "utf8"));
  return `${name} ${version}\n\n${readFileSync(join(folder, "LICENSE"), "utf8").trim()}\n`;
});
for (const name of fonts.filter((each) => each.endsWith(".txt"))) licences.push(`${readFileSync(join(here, "fonts", name), "utf8").trim()}\n`);
writeFileSync(join(out, "licences.txt"), licences.join("\n---\n\n"));

// Where there is no Node, a test compares this with the sources instead of building them again.
const sources = createHash("sha256");
for (const file of files(here)) {
  sources.update(relative(here, file).replaceAll("\\", "/"));
  sources.update("\0");
  sources.update(readFileSync(file));
}
writeFileSync(join(out, "sources.sha256"), `${sources.digest("hex")}\n`);

/** Names without hashes: files of a name are replaced, and old ones do not pile up. What several parts share is chunk-1.js, chunk-2.js, ... */
function writeWithPlainNames(outputs) {
  const names = new Map();
  const hashed = outputs.map((file) => basename(file.path)).filter((name) => /-[A-Z0-9]{8}\.js$/.test(name)).sort();
  for (const name of hashed) {
    const plain = name.replace(/-[A-Z0-9]{8}\.js$/, "");
    const alike = [...names.values()].filter((each) => each === `${plain}.js` || each.startsWith(`${plain}-`)).length;
    names.set(name, plain === "chunk" ? `chunk-${alike + 1}.js` : `${plain}.js`);
  }
  for (const file of outputs) {
    let text = file.text;
    for (const [name, plain] of names) text = text.replaceAll(name, plain);
    writeFileSync(join(out, names.get(basename(file.path)) ?? basename(file.path)), text);
  }
}

function files(folder) {
  return readdirSync(folder)
    .filter((name) => name !== "node_modules")
    .sort()
    .map((name) => join(folder, name))
    .flatMap((path) => (statSync(path).isDirectory() ? files(path) : [path]));
}
