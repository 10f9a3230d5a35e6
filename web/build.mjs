// Bundle the pages into scripts: `npm ci && npm run build`. The output depends on the source and package-lock.json only.
// With a folder as argument, write the bundles there instead, for example to compare them with those in the repository.
import { build } from "esbuild";
import { readFile } from "node:fs/promises";
import { fileURLToPath } from "node:url";
import { join } from "node:path";

const here = fileURLToPath(new URL(".", import.meta.url));
const root = process.argv[2] ?? join(here, "../src/regard");

const PAGES = {
  "inspection/trace/static": [
    { in: "src/main.ts", out: "app" },
    { in: "src/app.css", out: "app" },
    { in: "src/index.html", out: "index" },
  ],
  "serving/static": [
    { in: "src/translator/main.ts", out: "translate" },
    { in: "src/translator/translate.css", out: "translate" },
    { in: "src/translator/translate.html", out: "translate" },
  ],
};

/** Removes the indentation of the source, which the templates would keep. */
const withoutIndentation = {
  name: "without-indentation",
  setup({ onLoad }) {
    onLoad({ filter: /\.ts$/ }, async ({ path }) => ({ contents: (await readFile(path, "utf8")).replace(/\n\s+/g, "\n"), loader: "ts" }));
  },
};

for (const [folder, entryPoints] of Object.entries(PAGES))
  await build({
    absWorkingDir: here,
    entryPoints,
    outdir: join(root, folder),
    bundle: true,
    minify: true,
    format: "iife",
    target: "es2022",
    charset: "utf8",
    loader: { ".html": "copy" },
    legalComments: "inline",
    logLevel: "warning",
    plugins: [withoutIndentation],
  });
