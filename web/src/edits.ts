/** Edits in words: what the reader changed before the model decoded again. */
import { labelToken, type Edit, type TraceDocument } from "./trace.js";

/** Edits of the attention and masks of the source. A source and output tokens do not contain them. */
const INSIDE: ReadonlySet<string> = new Set(["set_row", "mask_keys", "uniform_row", "ablate_head", "mask_source", "mask_region"]);
export const changesModel = (edit: Edit): boolean => INSIDE.has(edit.kind);

const nameHead = (edit: Edit): string => (typeof edit["head"] === "number" ? `head ${edit["head"] + 1}` : "all heads");
const nameStep = (edit: Edit): string => (typeof edit["step"] === "number" ? `step ${edit["step"] + 1}` : "all steps");
const count = (values: unknown, noun: string): string => {
  const { length } = values as unknown[];
  return `${length} ${noun}${length === 1 ? "" : "s"}`;
};

/** The words of the source while edits change it. Positions of an edit are those of the text before it. */
class SourceWords {
  private readonly words: string[];

  constructor(text: string) {
    this.words = text.split(/\s+/u).filter(Boolean);
  }

  name(edit: Edit): string {
    const position = Number(edit["position"]);
    const word = edit["unit"] === "token" ? undefined : this.words[position];
    return word === undefined ? `source ${edit["unit"] === "token" ? "token" : "word"} ${position + 1}` : `“${word}”`;
  }

  apply(edit: Edit): void {
    if (edit["unit"] === "token") return;
    const position = Number(edit["position"]);
    if (edit.kind === "replace_source") this.words.splice(position, 1, ...String(edit["text"]).split(/\s+/u).filter(Boolean));
    if (edit.kind === "delete_source") this.words.splice(position, 1);
  }
}

function describe(edit: Edit, source: SourceWords, trace: TraceDocument | null): string {
  const keys = trace?.source.tokens;
  const named = (slots: unknown): string => {
    const [slot = -1, ...rest] = slots as number[];
    const token = /cross|^decoder\.attention/.test(String(edit["attention"])) && !rest.length ? keys?.[slot] : undefined;
    return token === undefined ? count(slots, "key") : `“${labelToken(token)}”`;
  };
  const token = (): string => {
    const step = Number(edit["step"]);
    return trace?.hypotheses[0]?.tokens[step] ?? (trace?.hypotheses[0] && step === trace.hypotheses[0].tokens.length ? "</s>" : String(edit["token"]));
  };
  const descriptions: Record<string, () => string> = {
    force_token: () => `“${labelToken(token())}” forced at ${nameStep(edit)}`,
    set_row: () => `weights set at ${nameStep(edit)}, ${nameHead(edit)}`,
    mask_keys: () => `${named(edit["keys"])} masked at ${nameStep(edit)}, ${nameHead(edit)}`,
    uniform_row: () => `uniform weights at ${nameStep(edit)}, ${nameHead(edit)}`,
    ablate_head: () => `${nameHead(edit)} ablated`,
    replace_source: () => `${source.name(edit)} → “${String(edit["text"])}”`,
    delete_source: () => `${source.name(edit)} deleted`,
    mask_source: () => `${source.name(edit)} masked`,
    mask_region: () => `${count(edit["cells"], "cell")} brushed out`,
  };
  return descriptions[edit.kind]?.() ?? edit.kind;
}

/** Return a description of each edit. */
export function describeEdits(edits: readonly Edit[], text: string, trace: TraceDocument | null): string[] {
  const source = new SourceWords(text);
  return edits.map((edit) => {
    const description = describe(edit, source, trace);
    source.apply(edit);
    return description;
  });
}
