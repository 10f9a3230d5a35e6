/** The training pairs that are nearest to the source, or to the state of the decoder at the present step. */
import { css, html, type TemplateResult } from "lit";
import { customElement } from "lit/decorators.js";
import type { Neighbor, NeighborKind, Neighbors } from "../client.js";
import { changesModel } from "../edits.js";
import { shared } from "../styles.js";
import { formatNumber, labelToken } from "../trace.js";
import { View } from "./base.js";
import { renderProgress, renderSegments } from "./controls.js";

const KINDS: Record<NeighborKind, readonly [name: string, meaning: string]> = {
  by_encoder: ["Encoder", "Sources with similar encoder states: the cosine of the states, averaged over positions"],
  by_state: ["Decoder", "Pairs with a similar decoder state at some step: the cosine of the states. The next token of the target is marked"],
  by_text: ["Text", "Sources with similar text: 1 is the same text, 0 is no character in common"],
};

@customElement("neighbors-panel")
export class NeighborsPanel extends View {
  static override styles = [
    shared,
    css`
      :host { margin-top: var(--space-3); }
      .close { margin-inline-start: auto; }
      ol { margin: 0; padding: 0; list-style: none; }
      li { display: grid; grid-template-columns: 5.5em minmax(0, 1fr) minmax(0, 1fr); gap: var(--space-3); align-items: start; padding-block: 6px; border-top: 1px solid var(--line); }
      li:first-child { border-top: 0; }
      li button { text-align: start; min-height: 0; border: 0; padding: 0 6px; margin-inline-start: -6px; }
      bdi { overflow-wrap: anywhere; }
      .bar { display: inline-block; width: 2.4em; height: 8px; border-radius: 3px; background: var(--line); overflow: hidden; margin-inline-end: 6px; }
      .bar i { display: block; height: 100%; background: var(--accent); }
      mark { background: var(--accent-fill); color: var(--on-accent); border-radius: 4px; padding: 1px 3px; }
      .loading { opacity: 0.55; }
      @media (max-width: 700px) { li { grid-template-columns: 5.5em minmax(0, 1fr); row-gap: 0; } li > :last-child { grid-column: 2; } }
    `,
  ];

  /** The last result, which is shown until there is another one. */
  private shown: Neighbors | undefined;

  private get key(): string {
    return JSON.stringify(this.store.describeNeighbors());
  }

  private get kind(): NeighborKind | "" {
    return this.store.state.neighbors;
  }

  protected override willUpdate(): void {
    const { store } = this;
    if (!store.isCurrent) return;
    if (!this.kind) {
      this.stop();
      this.shown = undefined;
      return;
    }
    this.computeResult("neighbors", store.describeNeighbors());
    this.shown = (store.results.get(this.key) as Neighbors | undefined) ?? this.shown;
  }

  protected override render(): TemplateResult {
    const { store, kind, shown } = this;
    if (!kind) return store.client.isLive || store.results.has(this.key) ? this.renderOffer() : html``;
    const choices = (Object.keys(KINDS) as NeighborKind[]).filter((each) => each !== "by_text" || !store.readsImages).map((each) => [each, KINDS[each][0]] as const);
    return html`<section class="panel stack" aria-label="Nearest training pairs">
      <div class="row">
        <h2>Nearest training pairs</h2>
        ${renderSegments("Similarity", choices, kind, (neighbors) => store.show({ neighbors }))}
        <button type="button" class="quiet close" @click=${() => store.show({ neighbors: "" })}>Close</button>
      </div>
      ${this.failure && !store.client.isLive ? html`<p class="muted">${this.failure}</p>` : this.renderFailure()}
      ${shown ? this.renderPairs(shown, kind) : this.failure ? "" : renderProgress("Reading the training pairs", this.progress)}
    </section>`;
  }

  private renderOffer(): TemplateResult {
    return html`<button type="button" id="neighbors" @click=${() => this.store.show({ neighbors: this.store.state.tab === "steps" ? "by_state" : "by_encoder" })}>Find the nearest training pairs</button>`;
  }

  private renderPairs(shown: Neighbors, kind: NeighborKind): TemplateResult {
    const isCurrent = this.store.results.get(this.key) === shown;
    const compared = kind === "by_text" ? shown.texts : shown.pairs;
    const { store } = this;
    const edits = store.state.edits.some(changesModel) ? " Hidden parts of the source and edits of attention are not applied." : "";
    const images = store.readsImages ? " Images of the training data cannot be opened: the page reads those of the test set, and files." : "";
    return html`<div class="stack ${isCurrent ? "" : "loading"}">
      <p class="muted small">${KINDS[kind][1]}. ${compared.toLocaleString("en")} of ${shown.size.toLocaleString("en")} training pairs are compared.${edits}${images}</p>
      ${kind === "by_state" ? this.renderAgreement(shown) : ""}
      <ol>${shown[kind].map((pair) => this.renderPair(pair))}</ol>
    </div>`;
  }

  /** How many of the pairs continue as the model does. */
  private renderAgreement({ by_state }: Neighbors): TemplateResult {
    const { row, state: { hypothesis } } = this.store;
    const { token } = this.store.trace!.steps[hypothesis]![row]!;
    const agreeing = by_state.filter(({ tokens, step }) => tokens![step!] === token).length;
    return html`<p id="agreement">${agreeing} of ${by_state.length} continue with <bdi><b>“${labelToken(token)}”</b></bdi>, as the output does at step ${row + 1}.</p>`;
  }

  private renderPair({ source, target, similarity, tokens, step }: Neighbor): TemplateResult {
    const { store } = this;
    const state = { text: source, example: null, edits: [] };
    const content = html`<bdi>${source}</bdi>`;
    return html`<li>
      <span class="number small"><span class="bar" aria-hidden="true"><i .style=${`width:${100 * Math.max(0, similarity)}%`}></i></span>${formatNumber(similarity, 2)}</span>
      <span>${store.readsImages ? content : html`<button type="button" class="quiet" ?disabled=${!store.canTrace({ source: { text: source }, edits: [] })} @click=${() => store.open({ state }, { row: step ?? 0 })}>${content}</button>`}</span>
      <bdi>${tokens ? tokens.map((token, index) => renderToken(token, index, step)) : target}</bdi>
    </li>`;
  }
}

/** A token inside a target: the mark of a word start is a space. The end is shown only if it comes next. */
function renderToken(token: string, index: number, step: number | undefined): TemplateResult | string {
  const text = token.replace("▁", "");
  const space = text === token || !index ? "" : " ";
  return index === step ? html`${space}<mark>${labelToken(text)}</mark>` : token === "</s>" ? "" : `${space}${text}`;
}
