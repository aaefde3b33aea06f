// Bundle the page into one file: src/trifold/look/page.html, with script and style inlined and hashes for both.
import { createHash } from "node:crypto";
import { readFileSync, writeFileSync } from "node:fs";
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
});
const text = (suffix) => result.outputFiles.find((file) => file.path.endsWith(suffix)).text.replaceAll("</", "<\\/").trim();
const [script, style] = [text(".js"), text(".css")];
const hash = (content) => `'sha256-${createHash("sha256").update(content, "utf8").digest("base64")}'`;
// Styles of elements, which scripts set for positions, are allowed; scripts other than this one are not.
const policy = `default-src 'none'; script-src ${hash(script)}; style-src 'unsafe-inline'; img-src data: blob:; connect-src 'self'; base-uri 'none'; form-action 'none'`;
const html = readFileSync(join(root, "index.html"), "utf8")
  .replace("POLICY", () => policy)
  .replace("STYLE", () => style)
  .replace("SCRIPT", () => script);
writeFileSync(out, html);
console.log(`${out}: ${html.length.toLocaleString("en")} bytes, ${gzipSync(html).length.toLocaleString("en")} gzipped`);
