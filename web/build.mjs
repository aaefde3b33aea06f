// Bundle the page into one file: src/trifold/look/page.html, with script and style inlined and hashes for both.
// The licences of the packages in the bundle go into the page, because every written page is a copy
// of them, and into THIRD_PARTY_LICENSES.txt beside it, where those who package trifold look.
import { createHash } from "node:crypto";
import { existsSync, readFileSync, writeFileSync } from "node:fs";
import { dirname, join } from "node:path";
import { fileURLToPath } from "node:url";
import { gzipSync } from "node:zlib";
import { build } from "esbuild";

const root = dirname(fileURLToPath(import.meta.url));
const out = process.argv[2] ?? join(root, "../src/trifold/look/page.html");

const result = await build({
  entryPoints: [join(root, "src/main.tsx")],
  bundle: true,
  minify: true,
  write: false,
  outdir: "out",
  format: "iife",
  target: "es2022",
  jsx: "automatic",
  jsxImportSource: "preact",
  legalComments: "none",
  charset: "utf8",
  metafile: true,
});

// The licence texts of the packages that the bundle has files of; packages with the same text
// share it.
const PACKAGE = /.*node_modules\/((?:@[^/]+\/)?[^/]+)/;
const LICENCE_FILES = ["LICENSE", "LICENSE.md", "LICENSE.txt", "LICENCE"];

function licences(inputs) {
  const names = new Set(inputs.map((path) => path.match(PACKAGE)?.[1]).filter(Boolean));
  const texts = new Map();
  for (const name of [...names].sort()) {
    const folder = join(root, "node_modules", name);
    const { version, license } = JSON.parse(readFileSync(join(folder, "package.json"), "utf8"));
    const file = LICENCE_FILES.map((one) => join(folder, one)).find(existsSync);
    if (!file) throw new Error(`${name} ${version} has no licence file in ${folder}`);
    const content = readFileSync(file, "utf8").replaceAll("\r\n", "\n").trim();
    const heads = texts.get(content) ?? [];
    texts.set(content, [...heads, `${name} ${version}, ${license}`]);
  }
  const rule = "=".repeat(80);
  const sections = [...texts].map(([content, heads]) => [rule, ...heads, "", content, ""]);
  const start = "page.html contains parts of these packages, under these licences.";
  return [start, "", ...sections.flat()].join("\n");
}

const notices = licences(Object.keys(result.metafile.inputs));
if (/-->|--!>|<!--/.test(notices)) {
  throw new Error("a licence text contains the mark of an HTML comment");
}
const text = (suffix) => result.outputFiles.find((file) => file.path.endsWith(suffix)).text.replaceAll("</", "<\\/").trim();
const [script, style] = [text(".js"), text(".css")];
const hash = (content) => `'sha256-${createHash("sha256").update(content, "utf8").digest("base64")}'`;
// Styles of elements, which scripts set for positions, are allowed; scripts other than this one are not.
const policy = `default-src 'none'; script-src ${hash(script)}; style-src 'unsafe-inline'; img-src data: blob:; connect-src 'self'; base-uri 'none'; form-action 'none'`;
const html = readFileSync(join(root, "index.html"), "utf8")
  .replace("POLICY", () => policy)
  .replace("NOTICES", () => notices)
  .replace("STYLE", () => style)
  .replace("SCRIPT", () => script);
writeFileSync(out, html);
writeFileSync(join(dirname(out), "THIRD_PARTY_LICENSES.txt"), notices);
console.log(`${out}: ${html.length.toLocaleString("en")} bytes, ${gzipSync(html).length.toLocaleString("en")} gzipped`);
