import assert from "node:assert/strict";
import { beforeEach, test } from "node:test";
import type { Client, ModelSummary } from "../src/client.js";
import type { TraceRequest } from "../src/requests.js";
import { Store } from "../src/store.js";
import type { TraceDocument } from "../src/trace.js";

/** What the store uses of a browser. */
Object.assign(globalThis, {
  sessionStorage: { getItem: () => null, setItem: () => undefined },
  history: { pushState: (_: unknown, __: string, url: string) => (location.hash = url), replaceState: (_: unknown, __: string, url: string) => (location.hash = url) },
  location: { hash: "" },
  addEventListener: () => undefined,
});

const MODEL = { id: "0", name: "dates", source_kind: "text", split: "test", examples: ["3 mai 2009"] } as unknown as ModelSummary;

const answer = (request: TraceRequest): TraceDocument => {
  const text = "text" in request.source ? request.source.text : "";
  return { source: { text, tokens: [...text] }, hypotheses: [{ text: text.toUpperCase(), tokens: [...text] }], attention: [] } as unknown as TraceDocument;
};

/** A server that answers when the test says so. */
class Server {
  readonly isLive = true;
  readonly requests: TraceRequest[] = [];
  readonly signals: AbortSignal[] = [];
  failure: Error | null = null;
  /** The requests that stay pending until `release`; null if they are answered at once. */
  private held: (() => void)[] | null = null;

  listModels = async (): Promise<ModelSummary[]> => {
    if (this.failure) throw this.failure;
    return [MODEL];
  };

  trace = (request: TraceRequest, signal: AbortSignal): Promise<TraceDocument> =>
    new Promise((resolve, reject) => {
      this.requests.push(request);
      this.signals.push(signal);
      signal.addEventListener("abort", () => reject(new DOMException("aborted", "AbortError")));
      const { failure } = this;
      const finish = (): void => (failure ? reject(failure) : resolve(answer(request)));
      if (this.held) this.held.push(finish);
      else finish();
    });

  hold(): void {
    this.held = [];
  }

  release(): void {
    this.held?.forEach((finish) => finish());
    this.held = null;
  }
}

const settle = (): Promise<void> => new Promise((resolve) => setTimeout(resolve, 0));

async function start(server = new Server()): Promise<[Store, Server]> {
  const store = new Store(server as unknown as Client);
  await store.start(location.hash);
  await settle();
  return [store, server];
}

async function predict(store: Store, text: string): Promise<void> {
  store.compute({ text });
  await settle();
}

beforeEach(() => {
  location.hash = "";
});

test("the page opens with the first example, and with the state of its URL", async () => {
  const [store, server] = await start();
  assert.equal(store.trace?.source.text, "3 mai 2009");
  await predict(store, "4 juin 2011");
  const [reloaded] = await start(server);
  assert.equal(reloaded.trace?.source.text, "4 juin 2011");
});

test("a repeated request is answered without the server", async () => {
  const [store, server] = await start();
  await predict(store, "a");
  await predict(store, "b");
  await predict(store, "a");
  assert.equal(store.trace?.source.text, "a");
  assert.equal(server.requests.length, 3);
});

test("a request of two views at the same time is sent once", async () => {
  const [store, server] = await start();
  const both = await Promise.all([store.fetchTrace({ queries: true }), store.fetchTrace({ queries: true })]);
  assert.equal(both[0], both[1]);
  assert.equal(server.requests.length, 2);
});

test("the 32 documents that were used last are kept", async () => {
  const [store, server] = await start();
  for (let number = 0; number < 32; number++) await predict(store, String(number));
  await predict(store, "0");
  assert.equal(server.requests.length, 33);
  await predict(store, "new");
  await predict(store, "0");
  assert.equal(server.requests.length, 34);
  await predict(store, "1");
  assert.equal(server.requests.length, 35);
});

test("a new text aborts the request before it, whose answer is not shown", async () => {
  const [store, server] = await start();
  server.hold();
  store.compute({ text: "slow" });
  store.compute({ text: "fast" });
  assert.deepEqual(server.signals.map((signal) => signal.aborted), [false, true, false]);
  server.release();
  await settle();
  assert.equal(store.trace?.source.text, "fast");
  assert.equal(store.error, "");
});

test("a request that was aborted is sent again", async () => {
  const [store, server] = await start();
  server.hold();
  store.compute({ text: "a" });
  store.compute({ text: "b" });
  store.compute({ text: "a" });
  server.release();
  await settle();
  assert.equal(store.trace?.source.text, "a");
  assert.equal(server.requests.length, 4);
});

test("the last result stays while a request fails, and the request is sent again on retry", async () => {
  const [store, server] = await start();
  server.failure = new Error("The server does not respond.");
  await predict(store, "a");
  assert.equal(store.error, "The server does not respond.");
  assert.equal(store.trace?.source.text, "3 mai 2009");
  assert.equal(store.isCurrent, false);
  assert.equal(store.loading, false);
  server.failure = null;
  store.retry();
  await settle();
  assert.equal(store.error, "");
  assert.equal(store.trace?.source.text, "a");
});

test("a text that is too long is rejected with its length, not cut", async () => {
  const [store, server] = await start();
  await predict(store, "😀".repeat(2001));
  assert.match(store.error, /2,001 characters/);
  assert.equal(server.requests.length, 1);
  await predict(store, "😀".repeat(2000));
  assert.equal(store.error, "");
});

test("the URL is written once, when the selection has settled", async (context) => {
  const [store] = await start();
  context.mock.timers.enable({ apis: ["setTimeout"] });
  const write = context.mock.method(history, "replaceState");
  for (let column = 1; column <= 100; column++) {
    store.show({ column });
    context.mock.timers.tick(20);
  }
  assert.equal(write.mock.callCount(), 0);
  context.mock.timers.tick(1000);
  assert.equal(write.mock.callCount(), 1);
  assert.match(location.hash, /column=100/);
});

test("what was selected is written before a new entry of the history", async () => {
  const [store] = await start();
  store.show({ column: 1 });
  store.show({ column: 2 });
  const before: string[] = [];
  const push = history.pushState.bind(history);
  history.pushState = (...parameters) => {
    before.push(location.hash);
    push(...parameters);
  };
  await predict(store, "ab");
  history.pushState = push;
  assert.match(before[0] ?? "", /column=2/);
});

test("a list of models that failed is read again on retry", async () => {
  const server = new Server();
  server.failure = new Error("no server");
  const [store] = await start(server);
  assert.equal(store.error, "no server");
  server.failure = null;
  store.retry();
  await settle();
  assert.equal(store.trace?.source.text, "3 mai 2009");
});

test("edits can be undone and redone, and another change forgets what was undone", async () => {
  const [store] = await start();
  const edit = { kind: "delete_source", position: 0 };
  store.addEdit(edit);
  await settle();
  store.undo();
  assert.deepEqual(store.state.edits, []);
  store.redo();
  assert.deepEqual(store.state.edits, [edit]);
  store.undo();
  await predict(store, "other");
  assert.equal(store.canRedo, false);
});

test("the focus stays inside a shorter output", async () => {
  const [store] = await start();
  store.show({ row: 9, rows: [1, 9] });
  await predict(store, "ab");
  assert.equal(store.state.row, 1);
});
