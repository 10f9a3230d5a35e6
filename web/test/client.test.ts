import assert from "node:assert/strict";
import { afterEach, test } from "node:test";
import { EmbeddedClient, ServerClient, type ModelSummary } from "../src/client.js";
import type { TraceRequest } from "../src/requests.js";
import type { TraceDocument } from "../src/trace.js";

const REQUEST: TraceRequest = { model: "0", source: { text: "3 mai 2009" }, search: { beam: 4 } };
const signal = (): AbortSignal => new AbortController().signal;
const native = globalThis.fetch;

/** Answer all requests with a function, and keep their paths and options. */
function serve(answer: (options: RequestInit) => Promise<Response>): { path: string; options: RequestInit }[] {
  const sent: { path: string; options: RequestInit }[] = [];
  globalThis.fetch = (path, options = {}) => {
    sent.push({ path: String(path), options });
    return answer(options);
  };
  return sent;
}

const json = (value: unknown, status = 200): Response => new Response(JSON.stringify(value), { status });

/** A response whose body arrives in chunks. */
const chunked = (...chunks: string[]): Response => new Response(new Blob(chunks).stream());

async function collect<T>(stream: AsyncIterable<T>): Promise<T[]> {
  const parts: T[] = [];
  for await (const part of stream) parts.push(part);
  return parts;
}

afterEach(() => {
  globalThis.fetch = native;
});

test("a request is JSON, with the token of the URL", async () => {
  const sent = serve(async () => json({ format: 1 }));
  assert.deepEqual(await new ServerClient("secret").trace(REQUEST, signal()), { format: 1 });
  assert.equal(sent[0]?.path, "api/trace");
  assert.equal(sent[0]?.options.method, "POST");
  assert.deepEqual(sent[0]?.options.headers, { Authorization: "Bearer secret", "Content-Type": "application/json" });
  assert.deepEqual(JSON.parse(String(sent[0]?.options.body)), REQUEST);
});

test("an error of the server is reported in its words", async () => {
  serve(async () => json({ error: { message: "search.beam: too large.", field: "search.beam" } }, 422));
  await assert.rejects(new ServerClient("").trace(REQUEST, signal()), /^Error: search.beam: too large\.$/);
});

test("an error without a message is reported with its status", async () => {
  serve(async () => new Response("<html>", { status: 502 }));
  await assert.rejects(new ServerClient("").listModels(), /status 502/);
});

test("a server that does not respond is reported with a remedy", async () => {
  serve(async () => Promise.reject(new TypeError("Failed to fetch")));
  await assert.rejects(new ServerClient("").card("0"), /Check that regard explore is still running/);
});

test("a request that is aborted fails as aborted", async () => {
  serve(({ signal: given }) => new Promise((_, reject) => given!.addEventListener("abort", () => reject(given!.reason))));
  const controller = new AbortController();
  const pending = new ServerClient("").trace(REQUEST, controller.signal);
  controller.abort();
  await assert.rejects(pending, { name: "AbortError" });
});

test("a stream yields each line, also if chunks split lines and characters", async () => {
  const bytes = new TextEncoder().encode('{"progress": 0}\n{"result": {"tokens": ["年"]}}\n\n{"progress": 1}');
  const parts = [bytes.slice(0, 5), bytes.slice(5, 41), bytes.slice(41)];
  serve(async () => new Response(new ReadableStream({
    start(controller) {
      for (const part of parts) controller.enqueue(part);
      controller.close();
    },
  })));
  const lines = await collect(new ServerClient("").streamResult("attribution", REQUEST, signal()));
  assert.deepEqual(lines, [{ progress: 0 }, { result: { tokens: ["年"] } }, { progress: 1 }]);
});

test("rows of a corpus are kept by model and search, and a longer stream adds to them", async () => {
  const head = { size: 3, most: 3, split: "test", pairs: "a" };
  const client = new ServerClient("");
  const read = async (beam: number, ...rows: number[]): Promise<unknown> => {
    const part = { rows: rows.map((index) => ({ index })), progress: 1 };
    serve(async () => chunked(`${JSON.stringify(head)}\n`, `${JSON.stringify(part)}\n`));
    return (await collect(client.streamCorpus({ model: "0", search: { beam } }, signal()))).at(-1)?.rows.map(({ index }) => index);
  };
  assert.deepEqual(await read(1, 0, 1), [0, 1]);
  assert.deepEqual(await read(2, 0), [0]);
  assert.deepEqual(await read(1, 0, 1, 2), [0, 1, 2]);
  assert.equal(client.corpora.size, 2);
});

test("the server stops when the rest of a stream is not needed", async () => {
  let isCancelled = false;
  serve(async () => new Response(new ReadableStream({
    start: (controller) => controller.enqueue(new TextEncoder().encode('{"pairs": "a"}\n')),
    cancel: () => void (isCancelled = true),
  })));
  for await (const corpus of new ServerClient("").streamCorpus({ model: "0" }, signal())) if (corpus.pairs) break;
  assert.ok(isCancelled);
});

test("a stream that fails ends with the error of its last line", async () => {
  serve(async () => chunked('{"progress": 0.5}\n', '{"error": {"message": "The target is empty."}}\n'));
  const seen: unknown[] = [];
  const read = async (): Promise<void> => {
    for await (const part of new ServerClient("").streamResult("attribution", { ...REQUEST, methods: ["occlusion"] }, signal())) seen.push(part);
  };
  await assert.rejects(read(), /The target is empty/);
  assert.deepEqual(seen, [{ progress: 0.5 }]);
});

test("an exported page finds its documents by source, edits and beam, with queries if they are requested", async () => {
  const document = (text: string): TraceDocument => ({ source: { text } }) as TraceDocument;
  const edits = [{ kind: "force_token", step: 0, token: "1" }];
  const client = new EmbeddedClient({
    models: [{ id: "0" } as ModelSummary],
    traces: [
      { request: REQUEST, document: document("without queries") },
      { request: { ...REQUEST, edits: [], queries: true }, document: document("with queries") },
      { request: { ...REQUEST, edits }, document: document("edited") },
    ],
  });
  assert.equal((await client.trace(REQUEST)).source.text, "without queries");
  assert.equal((await client.trace({ ...REQUEST, queries: true })).source.text, "with queries");
  assert.equal((await client.trace({ ...REQUEST, edits })).source.text, "edited");
  assert.equal((await client.trace({ ...REQUEST, edits, queries: true })).source.text, "edited");
  assert.ok(client.canTrace({ ...REQUEST, edits }));
  assert.ok(!client.canTrace({ ...REQUEST, model: "1" }));
  await assert.rejects(client.trace({ ...REQUEST, source: { text: "other" } }), /Run regard explore/);
  await assert.rejects(client.card("0"), /does not contain the settings/);
});
