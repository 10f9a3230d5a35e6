// Bundle the page into one script: `npm ci && npm run build`. The output depends on the source and package-lock.json only.
// With a folder as argument, write the bundle there instead, for example to compare it with the one in the repository.
import { build } from "esbuild";
import { fileURLToPath } from "node:url";

const here = fileURLToPath(new URL(".", import.meta.url));
const output = process.argv[2] ?? `${here}../src/regard/inspection/trace/static`;

await build({
  absWorkingDir: here,
  entryPoints: [
    { in: "src/main.ts", out: "app" },
    { in: "src/app.css", out: "app" },
    { in: "src/index.html", out: "index" },
  ],
  outdir: output,
  bundle: true,
  minify: true,
  format: "iife",
  target: "es2022",
  charset: "utf8",
  loader: { ".html": "copy" },
  legalComments: "inline",
  logLevel: "warning",
});
