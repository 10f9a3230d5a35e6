import assert from "node:assert/strict";
import { afterEach, mock, test } from "node:test";
import { alignText, assignTokens, splitAtWords, toCodeUnit, weighWords } from "../src/translator/alignment.js";
import { Client, type Sentence } from "../src/translator/client.js";
import { parseFragment, PAUSE, Store, toFragment } from "../src/translator/store.js";

const LANGUAGES = [
  { code: "en", name: "English", targets: ["de", "fr"] },
  { code: "de", name: "German", targets: ["en"] },
  { code: "fr", name: "French", targets: [] },
];
const MODELS = [{ name: "en-de", kind: "translate" }, { name: "dates", kind: "predict" }, { name: "scenes", kind: "caption" }];
const SETTINGS = { charLimit: 20, keyRequired: false, filesTranslation: true, supportedFilesFormat: [".txt"] };
const SENTENCE: Sentence = {
  source: "a house", text: "ein Haus", start: 0, source_words: [[0, 1], [2, 7]], words: [[0, 3], [4, 8]], links: [[0, 0], [1, 1]],
};

type Answer = (fields: Record<string, unknown>, options: RequestInit) => unknown;
const native = globalThis.fetch;

/** Answer requests by path. Return the paths and bodies that were sent. */
function serve(answers: Record<string, Answer>): { path: string; fields: Record<string, unknown>; options: RequestInit }[] {
  const all: Record<string, Answer> = { languages: () => LANGUAGES, models: () => MODELS, "frontend/settings": () => SETTINGS, ...answers };
  const sent: { path: string; fields: Record<string, unknown>; options: RequestInit }[] = [];
  globalThis.fetch = async (path, options = {}) => {
    const { body } = options;
    const fields = body instanceof FormData ? Object.fromEntries(body) : body ? JSON.parse(String(body)) : {};
    sent.push({ path: String(path), fields, options });
    const answer = await all[String(path)]!(fields, options);
    return answer instanceof Response ? answer : new Response(JSON.stringify(answer));
  };
  return sent;
}

const echo: Answer = ({ q }) => ({ translatedText: `<${String(q)}>`, regard: { sentences: [] } });

async function open(answers: Record<string, Answer>, input = {}): Promise<{ store: Store; sent: ReturnType<typeof serve> }> {
  const sent = serve({ translate: echo, ...answers });
  const store = new Store(new Client(), input);
  await store.load();
  await settle();
  return { store, sent };
}

/** Wait until the responses that are ready have arrived. */
const settle = async (): Promise<void> => {
  for (let turn = 0; turn < 20; turn++) await Promise.resolve();
  await new Promise(setImmediate);
};

afterEach(() => {
  globalThis.fetch = native;
  mock.timers.reset();
});

test("offsets count characters, and the page counts code units", () => {
  assert.equal(toCodeUnit("a😀b", 2), 3);
  const sentence = { ...SENTENCE, source: "😀 x", source_words: [[0, 1], [2, 3]], start: 3 } as Sentence;
  const { sourceWords } = alignText("😀. 😀 x", "ein Haus", [sentence]);
  assert.deepEqual(sourceWords, [[4, 6], [7, 8]]);
});

test("words are numbered over all sentences, and linked in both directions", () => {
  const aligned = alignText("a house\na house", "ein Haus\nein Haus", [SENTENCE, { ...SENTENCE, start: 8, links: [[0, 1], [1, 1]] }]);
  assert.deepEqual(aligned.words, [[0, 3], [4, 8], [9, 12], [13, 17]]);
  assert.deepEqual(aligned.toSource, [[0], [1], [], [2, 3]]);
  assert.deepEqual(aligned.toWords, [[0], [1], [3], [3]]);
  const segments = splitAtWords(aligned.text, aligned.words);
  assert.equal(segments.map(({ text }) => text).join(""), aligned.text);
  assert.deepEqual(segments.map(({ word }) => word), [0, null, 1, null, 2, null, 3]);
});

test("a sentence that is not in the result has no words", () => {
  assert.deepEqual(alignText("a house", "other", [SENTENCE]).words, []);
});

test("each token belongs to a word: subwords, characters, and tokens that are not in the text", () => {
  const words: [number, number][] = [[0, 3], [4, 9]];
  assert.deepEqual(assignTokens(["▁The", "▁hou", "se", "</s>"], "the house", words), [0, 1, 1, null]);
  assert.deepEqual(assignTokens([..."the house"], "the house", words), [0, 0, 0, 1, 1, 1, 1, 1, 1]);
  assert.deepEqual(assignTokens(["▁", "the", "<unk>", "se", " "], "the house", words), [0, 0, null, 1, null]);
});

test("weights of subwords are added over the source, and averaged over the word of the result", () => {
  const attention = {
    source_tokens: ["▁a", "▁hou", "se", "</s>"],
    tokens: ["▁ein", "▁Ha", "us", "</s>"],
    weights: [[1, 0, 0, 0], [0, 0.5, 0.25, 0.25], [0.5, 0.25, 0.25, 0], [0, 0, 0, 1]],
  };
  assert.deepEqual(weighWords(attention, SENTENCE, 1), { words: [0.25, 0.625], rest: 0.125 });
  assert.equal(weighWords({ ...attention, tokens: ["x", "x", "x", "x"] }, SENTENCE, 1), null);
});

test("the page translates after a pause, and aborts the request before", async () => {
  const signals: AbortSignal[] = [];
  const { store, sent } = await open({
    translate: ({ q }, { signal }) => {
      signals.push(signal!);
      return q === "slow" ? new Promise((_, reject) => signal!.addEventListener("abort", () => reject(signal!.reason))) : echo({ q }, {});
    },
  });
  mock.timers.enable({ apis: ["setTimeout"] });
  const count = (): number => sent.filter(({ path }) => path === "translate").length;
  store.change({ text: "s" }, PAUSE);
  store.change({ text: "slow" }, PAUSE);
  assert.equal(count(), 0);
  mock.timers.tick(PAUSE);
  assert.equal(count(), 1);
  assert.equal(store.isLoading, true);
  store.change({ text: "fast" }, PAUSE);
  assert.equal(signals[0]!.aborted, true);
  mock.timers.tick(PAUSE);
  await settle();
  assert.equal(store.shownText, "<fast>");
  assert.equal(store.failure, null);
});

test("the last result remains while a request fails, and a retry replaces it", async () => {
  let isFailing = false;
  const { store } = await open(
    { translate: (fields, options) => (isFailing ? new Response('{"error": "The queue is full."}', { status: 503, headers: { "Retry-After": "2" } }) : echo(fields, options)) },
    { text: "one" },
  );
  assert.equal(store.shownText, "<one>");
  isFailing = true;
  store.change({ text: "two" });
  await settle();
  assert.equal(store.failure!.message, "The queue is full. Try again in 2 s.");
  assert.deepEqual([store.shownText, store.isOutdated, store.isLoading], ["<one>", true, false]);
  isFailing = false;
  store.failure!.retry();
  await settle();
  assert.deepEqual([store.shownText, store.isOutdated, store.failure], ["<two>", false, null]);
});

test("a server that does not respond, and one that responds without JSON, are reported", async () => {
  const { store } = await open({ translate: () => Promise.reject(new TypeError("Failed to fetch")) }, { text: "a" });
  assert.match(store.failure!.message, /Check that regard serve is still running/);
  serve({ translate: () => new Response("<html>", { status: 502 }) });
  await store.run();
  assert.match(store.failure!.message, /status 502/);
});

test("a text above the limit is not sent, and its characters are counted", async () => {
  const { store, sent } = await open({}, { text: "😀".repeat(21) });
  assert.match(store.failure!.message, /21 characters. The limit is 20/);
  assert.equal(sent.some(({ path }) => path === "translate"), false);
  store.change({ text: "😀".repeat(20) });
  await settle();
  assert.equal(store.failure, null);
});

test("languages that the server does not offer are replaced, and a swap needs a model", async () => {
  const { store } = await open({}, { source: "xx", target: "de", text: "a" });
  assert.deepEqual([store.input.source, store.input.target], ["en", "de"]);
  assert.deepEqual(store.targets.map(({ code }) => code), ["de", "fr"]);
  store.change({ target: "fr" });
  assert.equal(store.swapped, null);
  store.change({ target: "de" });
  await settle();
  store.swap();
  assert.deepEqual({ ...store.input }, { model: "", source: "de", target: "en", text: "<a>" });
});

test("a detected language is swapped", async () => {
  const { store } = await open(
    { translate: ({ q }) => ({ translatedText: q, detectedLanguage: { language: "en", confidence: 90 } }) },
    { source: "auto", target: "de", text: "a" },
  );
  assert.deepEqual(store.swapped, { source: "de", target: "en" });
});

test("a hovered word highlights itself and the words that are aligned with it", async () => {
  const { store } = await open({ translate: () => ({ translatedText: "ein Haus", regard: { sentences: [SENTENCE] } }) }, { text: "a house" });
  store.hover({ side: "result", word: 1 });
  assert.deepEqual([store.findHighlighted("source"), store.findHighlighted("result")], [[1], [1]]);
  store.hover(null);
  assert.deepEqual(store.findHighlighted("source"), []);
});

test("the weights of a sentence are requested once, and hidden by the second selection", async () => {
  const attention = { source_tokens: ["▁a", "▁house"], tokens: ["▁ein", "▁Haus"], weights: [[0.75, 0.25], [0, 1]] };
  const { store, sent } = await open(
    { translate: ({ regard }) => ({ translatedText: "ein Haus", regard: { sentences: [{ ...SENTENCE, ...((regard as { attention?: true }).attention && { attention }) }] } }) },
    { text: "a house" },
  );
  await store.weigh(0);
  assert.deepEqual(store.weights!.values, { words: [0.75, 0.25], rest: 0 });
  await store.weigh(1);
  assert.deepEqual(store.weights!.values, { words: [0, 1], rest: 0 });
  assert.equal(sent.filter(({ fields }) => (fields["regard"] as { attention?: true })?.attention).length, 1);
  assert.match(store.explorer!, /^explore\?q=a\+house&source=en&target=de$/);
  await store.weigh(1);
  assert.equal(store.weights, null);
});

test("a key is sent as a header, and nothing is sent without one if it is required", async () => {
  const { store, sent } = await open({ "frontend/settings": () => ({ ...SETTINGS, keyRequired: true }) }, { text: "a" });
  assert.match(store.failure!.message, /requires an API key/);
  assert.equal(sent.some(({ path }) => path === "translate"), false);
  store.setKey("secret");
  await settle();
  assert.equal(store.shownText, "<a>");
  assert.equal((sent.at(-1)!.options.headers as Record<string, string>)["Authorization"], "Bearer secret");
  assert.equal(store.explorer, null);
});

test("models that do not translate are selected by name", async () => {
  const { store, sent } = await open(
    {
      predict: ({ q }) => ({ predictions: [{ source: q, text: "2009", alternatives: [{ text: "2010" }] }] }),
      caption: () => ({ text: "a red circle" }),
    },
    { model: "dates", text: "May 2009" },
  );
  assert.equal(store.shownText, "2009");
  assert.equal(sent.at(-1)!.fields["model"], "dates");
  store.show(1);
  assert.equal(store.shownText, "2010");
  store.change({ model: "scenes" });
  store.openImage(new File(["x"], "photo.png"));
  await settle();
  assert.equal(store.shownText, "a red circle");
  assert.equal((sent.at(-1)!.fields["image"] as File).name, "photo.png");
});

test("documents are translated one after the other, and each failure is reported beside its name", async () => {
  const { store } = await open({ translate_file: () => ({ translatedFileUrl: "http://inside:5000/download_file/x.txt" }), "download_file/x.txt": () => new Response("A") });
  await store.translateFiles([new File(["a"], "a.TXT"), new File(["b"], "b.xyz")]);
  assert.deepEqual(store.files.map(({ state }) => state), ["done", "failed"]);
  assert.equal(await (await native(store.files[0]!.outcome)).text(), "A");
  assert.match(store.files[1]!.outcome, /not supported. Use one of: .txt/);
});

test("the fragment of the URL contains the input, and no long text", () => {
  const input = { model: "", source: "en", target: "de", text: "a & b" };
  assert.deepEqual(parseFragment(toFragment(input)), { source: "en", target: "de", text: "a & b" });
  assert.deepEqual(parseFragment(toFragment({ ...input, model: "dates", text: "x".repeat(5000) })), { model: "dates" });
});

test("a page that cannot read what the server offers can retry", async () => {
  let isFailing = true;
  const { store } = await open({ languages: () => (isFailing ? new Response("{}", { status: 500 }) : LANGUAGES) }, { text: "a" });
  assert.match(store.failure!.message, /status 500/);
  isFailing = false;
  store.failure!.retry();
  await settle();
  assert.deepEqual([store.shownText, store.failure], ["<a>", null]);
});
