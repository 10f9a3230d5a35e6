// Bundle the pages into scripts: `npm ci && npm run build`. The output depends on the source and package-lock.json only.
// With a folder as argument, write the bundles there instead, for example to compare them with those in the repository.
import { build, transform } from "esbuild";
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

const minifyStyle = async (style) => (await transform(style, { loader: "css", minify: true, charset: "utf8" })).code.trim();

/** Removes the indentation of templates, and minifies the styles of components. */
const minifyTemplates = {
  name: "minify-templates",
  setup({ onLoad }) {
    onLoad({ filter: /\.ts$/ }, async ({ path }) => {
      const [first, ...others] = (await readFile(path, "utf8")).replace(/\n\s+/g, "\n").split("css`");
      const styled = others.map(async (text) => {
        const end = text.indexOf("`");
        return (await minifyStyle(text.slice(0, end))) + text.slice(end);
      });
      return { contents: [first, ...(await Promise.all(styled))].join("css`"), loader: "ts" };
    });
    onLoad({ filter: /\.css$/ }, async ({ path, with: { type } }) =>
      type === "text" ? { contents: await minifyStyle(await readFile(path, "utf8")), loader: "text" } : undefined,
    );
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
    plugins: [minifyTemplates],
  });
