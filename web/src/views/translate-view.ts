/** The tab Translate: source and output side by side. An output token lights up the source tokens that it attends to. */
import { css, html, type TemplateResult } from "lit";
import { customElement, state } from "lit/decorators.js";
import { at, type Matrix } from "../arrays.js";
import { AlignmentFigure, type Figure } from "../figures.js";
import { selectMap } from "../selection.js";
import { shared } from "../styles.js";
import { describeHypothesis, findLayers, formatPercent, labelToken, nameSlots, toProbability, type Candidate, type Step } from "../trace.js";
import { View } from "./base.js";

@customElement("translate-view")
export class TranslateView extends View {
  static override styles = [
    shared,
    css`
      .panes { display: grid; grid-template-columns: repeat(2, minmax(0, 1fr)); gap: var(--space-3); }
      @media (max-width: 800px) { .panes { grid-template-columns: minmax(0, 1fr); } }
      .text { font-size: var(--size-5); line-height: 1.7; word-break: break-word; }
      .long { font-size: var(--size-3); }
      .source span { border-radius: 5px; padding: 2px 1px; transition: background 120ms; cursor: pointer; }
      .source span.chosen { box-shadow: inset 0 0 0 2px var(--accent); }
      .edits input { width: 9em; min-height: 34px; padding: 4px 10px; background: var(--control); border: 1px solid var(--line-strong); border-radius: 8px; }
      .text button {
        font-size: inherit; line-height: 1.25; border: 0; background: none; padding: 1px 2px 5px; min-height: 0; min-width: 0.6em; border-radius: 4px 4px 0 0; position: relative;
      }
      .text button::after {
        content: ""; position: absolute; left: 1px; right: 1px; bottom: 0; height: 5px; border-radius: 2px;
        background: linear-gradient(to right, var(--accent) var(--share), var(--line-strong) var(--share));
      }
      .text button[aria-current="true"] { background: var(--tint); }
      .text button.forced { font-weight: 650; }
      .alternatives { display: grid; gap: var(--space-3); grid-template-columns: minmax(280px, 1fr) minmax(260px, 1fr); align-items: start; }
      @media (max-width: 800px) { .alternatives { grid-template-columns: 1fr; } }
      .choices { display: grid; gap: 4px; margin: 0; padding: 0; list-style: none; }
      .choices button { display: grid; grid-template-columns: 6em 1fr 4.4em; gap: 10px; width: 100%; align-items: center; text-align: start; padding: 4px 10px; }
      .choices button[aria-pressed="true"] { border-color: var(--accent); font-weight: 600; }
      .bar { height: 10px; border-radius: 3px; background: var(--line); overflow: hidden; }
      .bar i { display: block; height: 100%; background: var(--accent); }
      .hypotheses { margin: 0; padding-inline-start: 1.5em; display: grid; gap: 6px; }
      .hypotheses button { text-align: start; }
      .hypotheses button[aria-pressed="true"] { border-color: var(--accent); background: var(--tint); }
    `,
  ];

  /** The output token under the pointer. */
  @state() private hovered: number | null = null;

  override createPaperFigure(fontSize: number): Figure | null {
    const { trace, state: { hypothesis } } = this.store;
    const output = trace?.hypotheses[hypothesis];
    if (!trace || !output) return null;
    const probabilities = output.tokens.map((_, index) => this.findProbability(index));
    return new AlignmentFigure({ source: nameSlots(trace), output: output.tokens, weights: this.weights, probabilities, fontSize });
  }

  /** A step of the output; undefined if the document contains weights only. */
  private findStep(index: number): Step | undefined {
    return this.store.trace!.steps[this.store.state.hypothesis]?.[index];
  }

  private findProbability(index: number): number {
    return toProbability(this.findStep(index)?.log_prob ?? null);
  }

  protected override render(): TemplateResult {
    const { trace } = this.store;
    if (!trace) return html``;
    const { hypothesis, row } = this.store.state;
    const output = trace.hypotheses[hypothesis];
    const active = this.hovered ?? row;
    return html`
      <div class="stack">
        <div class="panes">
          <section class="panel stack" aria-label="Source">
            <p class="muted small">Source</p>
            ${this.renderSource(active)} ${this.renderSourceEdits()}
          </section>
          <section class="panel stack" aria-label="Output">
            <div class="row"><p class="muted small">Output. The line under a token is its probability.</p></div>
            ${this.renderOutput()}
            <p class="muted small number">${output ? describeHypothesis(output) : ""}${trace.seconds === undefined ? "" : `, computed in ${trace.seconds.toFixed(2)} s`}</p>
          </section>
        </div>
        <div class="alternatives">
          ${this.renderAlternatives()} ${this.renderHypotheses()}
        </div>
      </div>
    `;
  }

  private get weights(): Matrix | null {
    const { trace, state: { hypothesis } } = this.store;
    const layers = findLayers(trace!, "cross", hypothesis);
    if (!layers.length) return null;
    return selectMap(trace!, { role: "cross", layer: layers.length - 1, head: "mean", hypothesis, words: false })!.weights;
  }

  private renderSource(active: number): TemplateResult {
    const trace = this.store.trace!;
    if (trace.source.grid) return html`<p>An image with ${nameSlots(trace).length} cells.</p><div class="row"><button type="button" @click=${() => this.store.show({ tab: "image" })}>Show what the model attends to</button></div>`;
    const weights = this.weights;
    const isLong = trace.source.tokens.length > 60;
    return html`<div class="text source ${isLong ? "long" : ""}" dir="auto">${trace.source.tokens.map((token, slot) => {
      const weight = weights && active < (trace.hypotheses[this.store.state.hypothesis]?.tokens.length ?? 0) ? weights.at(active, slot) : 0;
      const share = Math.round(100 * Math.min(1, weight));
      return html`<span class=${this.isChosen(slot) ? "chosen" : ""} @click=${() => this.store.show({ column: slot })} .style=${`background:color-mix(in srgb, var(--accent) ${Math.round(share * 0.75)}%, transparent)`} title=${formatPercent(weight)}>${showText(token)}</span>`;
    })}</div>`;
  }

  /** The word of the focused source token, or the token itself, if the source has no spaces. */
  private get word(): { unit: "word" | "token"; position: number; text: string; start: number; end: number } | null {
    const { source } = this.store.trace!;
    const slot = Math.min(this.store.state.column, source.tokens.length - 1);
    const offset = source.offsets[slot];
    if (!offset || source.grid) return null;
    const words = [...source.text.matchAll(/\S+/gu)];
    if (words.length < 2) return { unit: "token", position: slot, text: at(source.tokens, slot), start: offset[0], end: offset[1] };
    // A space belongs to the word after it.
    const position = Math.max(0, words.findIndex((word) => word.index + word[0].length > codeUnits(source.text, offset[1]) - 1));
    const found = at(words, position);
    const start = [...source.text.slice(0, found.index)].length;
    return { unit: "word", position, text: found[0], start, end: start + [...found[0]].length };
  }

  private isChosen(slot: number): boolean {
    const { word } = this;
    const [start, end] = this.store.trace!.source.offsets[slot] ?? [0, 0];
    return word !== null && this.store.client.isLive && start < word.end && end > word.start;
  }

  private renderSourceEdits(): TemplateResult | string {
    const { word } = this;
    if (!word || !this.store.client.isLive) return "";
    const { unit, position } = word;
    const replace = (event: Event): void => {
      event.preventDefault();
      const text = this.shadowRoot!.querySelector<HTMLInputElement>("#replacement")!.value;
      if (text) this.store.addEdit({ kind: "replace_source", position, unit, text });
    };
    const move = (offset: number): void => this.moveWord(offset);
    return html`<form class="row edits" aria-label="Edit the source" @submit=${replace}>
      <button type="button" class="quiet" aria-label="Previous source word" @click=${() => move(-1)}>←</button>
      <bdi><b>${word.text}</b></bdi>
      <button type="button" class="quiet" aria-label="Next source word" @click=${() => move(1)}>→</button>
      <button type="button" id="mask-source" @click=${() => this.store.addEdit({ kind: "mask_source", position, unit })}>Mask</button>
      <button type="button" id="delete-source" @click=${() => this.store.addEdit({ kind: "delete_source", position, unit })}>Delete</button>
      <input id="replacement" aria-label=${`Replace ${word.text} with`} placeholder="Replace with" maxlength="200" />
      <button id="replace-source">Replace</button>
    </form>`;
  }

  private moveWord(offset: number): void {
    const { word } = this;
    const { source } = this.store.trace!;
    const edge = offset > 0 ? word!.end : word!.start;
    const isWord = (slot: number): boolean => !/^\s+$/u.test(at(source.tokens, slot));
    const slot =
      offset > 0
        ? source.offsets.findIndex(([start], index) => start >= edge && isWord(index))
        : source.offsets.findLastIndex(([, end], index) => end <= edge && isWord(index));
    if (slot >= 0) this.store.show({ column: slot });
  }

  private renderOutput(): TemplateResult {
    const trace = this.store.trace!;
    const { hypothesis, row } = this.store.state;
    const output = trace.hypotheses[hypothesis];
    if (!output?.tokens.length) return html`<p>The output is empty.</p>`;
    const forced = this.store.state.edits.reduce((last, edit) => (edit.kind === "force_token" ? Number(edit["step"]) : last), -1);
    const isLong = output.tokens.length > 60;
    return html`<div class="text ${isLong ? "long" : ""}" dir="auto" role="group" aria-label="Output tokens" @keydown=${this.moveToken} @pointerleave=${() => (this.hovered = null)}>
      ${output.tokens.map((token, index) => {
        const probability = this.findProbability(index);
        return html`<button type="button" class=${index <= forced ? "forced" : ""} tabindex=${index === row ? 0 : -1} aria-current=${index === row}
          aria-label=${this.findStep(index) ? `${labelToken(token)}, probability ${formatPercent(probability)}` : labelToken(token)} .style=${`--share:${100 * probability}%`}
          @pointerenter=${() => (this.hovered = index)} @focus=${() => (this.hovered = index)} @blur=${() => (this.hovered = null)}
          @click=${() => this.store.show({ row: index })}>${showText(token)}</button>`;
      })}
    </div>`;
  }

  private moveToken(event: KeyboardEvent): void {
    const count = at(this.store.trace!.hypotheses, this.store.state.hypothesis).tokens.length;
    const targets: Record<string, number> = { ArrowRight: this.store.state.row + 1, ArrowLeft: this.store.state.row - 1, Home: 0, End: count - 1 };
    const target = targets[event.key];
    if (target === undefined || target < 0 || target >= count) return;
    event.preventDefault();
    this.store.show({ row: target });
    void this.updateComplete.then(() => this.shadowRoot!.querySelector<HTMLElement>('[aria-current="true"]')?.focus());
  }

  private renderAlternatives(): TemplateResult | string {
    const trace = this.store.trace!;
    const { hypothesis, row } = this.store.state;
    const step = trace.steps[hypothesis]?.[row];
    if (!step) return "";
    return html`<section class="panel stack" aria-label="Alternatives">
      <h2>Alternatives to <bdi>“${labelToken(step.token)}”</bdi></h2>
      <p class="muted small">${this.store.client.isLive ? "Choose a token: the output before it is kept, and the model decodes the rest again." : "The most likely tokens at this position."}</p>
      <ol class="choices">
        ${step.top.map((candidate) => this.renderCandidate(candidate, candidate.id === step.id, row))}
      </ol>
      ${this.store.client.isLive ? this.renderOtherToken(row) : ""}
    </section>`;
  }

  private renderCandidate(candidate: Candidate, isChosen: boolean, step: number): TemplateResult {
    const probability = toProbability(candidate.log_prob);
    return html`<li><button type="button" aria-pressed=${isChosen} ?disabled=${!this.store.client.isLive || isChosen}
      @click=${() => this.force(step, candidate.id)}>
      <bdi>${labelToken(candidate.token)}</bdi><span class="bar"><i .style=${`width:${100 * probability}%`}></i></span><span class="number small">${formatPercent(probability)}</span>
    </button></li>`;
  }

  private renderOtherToken(step: number): TemplateResult {
    const submit = (event: Event): void => {
      event.preventDefault();
      const token = this.shadowRoot!.querySelector<HTMLInputElement>("#other-token")!.value;
      if (token) this.force(step, token);
    };
    return html`<form class="row edits" aria-label="Force another token" @submit=${submit}>
      <input id="other-token" aria-label="Another token of the vocabulary" placeholder="Another token" maxlength="100" />
      <button id="force-token">Force</button>
      <button type="button" id="force-end" @click=${() => this.force(step, "</s>")}>End the output here</button>
    </form>`;
  }

  /** Fix the output up to this step, with another token at it. Later forced tokens do not apply to the new prefix. */
  private force(step: number, token: number | string): void {
    const { edits } = this.store.state;
    const kept = edits.filter((edit) => edit.kind !== "force_token" || Number(edit["step"]) < step);
    this.store.compute({ edits: [...kept, { kind: "force_token", step, token }] });
  }

  private renderHypotheses(): TemplateResult | string {
    const { hypotheses } = this.store.trace!;
    if (hypotheses.length < 2) return "";
    return html`<section class="panel stack" aria-label="Hypotheses">
      <h2>Hypotheses of beam search</h2>
      <ol class="hypotheses">
        ${hypotheses.map(
          (each, index) => html`<li><button type="button" class="quiet" aria-pressed=${index === this.store.state.hypothesis} @click=${() => this.store.show({ hypothesis: index })}><bdi>${each.text}</bdi> <span class="muted number small">${describeHypothesis(each)}</span></button></li>`,
        )}
      </ol>
    </section>`;
  }
}

/** The text of a token inside a text: the mark of a word start is a space. */
function showText(token: string): string {
  return token.startsWith("▁") ? ` ${token.slice(1)}` : /^\s+$/u.test(token) ? " " : labelToken(token);
}

/** The index of a character in code units. Offsets of a trace count characters, as Python does. */
function codeUnits(text: string, characters: number): number {
  return [...text].slice(0, characters).join("").length;
}
