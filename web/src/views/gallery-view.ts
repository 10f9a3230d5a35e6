/** The tab Gallery: each mechanism with its equation, its paper, and its weights for the same text. */
import { css, html, type TemplateResult } from "lit";
import { customElement, state } from "lit/decorators.js";
import { at } from "../arrays.js";
import type { GalleryEntry } from "../client.js";
import { MatrixFigure, paint } from "../figures.js";
import { currentPalette } from "../palette.js";
import { selectMap } from "../selection.js";
import { INITIAL, pickComputed, writeFragment, type Tab } from "../state.js";
import { shared } from "../styles.js";
import type { TraceDocument } from "../trace.js";
import { View } from "./base.js";

const MAP = { width: 330, height: 230 };

/** The tabs that a card links to. */
const LINKS: readonly (readonly [Tab, string])[] = [["attention", "Attention"], ["equation", "Equation"], ["compare", "Compare"]];

@customElement("gallery-view")
export class GalleryView extends View {
  static override styles = [
    shared,
    css`
      ul { list-style: none; margin: 0; padding: 0; display: grid; grid-template-columns: repeat(auto-fill, minmax(min(340px, 100%), 1fr)); gap: var(--space-3); }
      li { display: flex; flex-direction: column; gap: var(--space-2); }
      h2 { overflow-wrap: anywhere; }
      canvas { display: block; max-width: 100%; min-height: 0; object-fit: contain; object-position: left; }
      .equation { font-size: var(--size-2); overflow-wrap: anywhere; }
      nav { display: flex; gap: var(--space-3); margin-top: auto; }
      code { overflow-wrap: anywhere; }
      a { color: var(--accent); }
    `,
  ];

  /** The traces of the entries, in their order. */
  @state() private traces: readonly TraceDocument[] = [];

  private get entries(): readonly GalleryEntry[] {
    return this.store.client.saved?.gallery ?? [];
  }

  protected override willUpdate(): void {
    const fetchAll = (): Promise<TraceDocument[]> => Promise.all(this.entries.map(({ model }) => this.store.fetchTrace({ model, edits: [] })));
    this.load("gallery", fetchAll, (traces) => (this.traces = traces));
  }

  protected override updated(changed: Map<PropertyKey, unknown>): void {
    super.updated(changed);
    const canvases = this.shadowRoot!.querySelectorAll("canvas");
    this.traces.forEach((trace, index) => {
      const map = selectMap(trace, { role: at(this.entries, index).role, layer: Infinity, head: "mean", hypothesis: 0, words: false });
      if (map) paint(canvases[index]!, new MatrixFigure({ weights: map.weights, axes: map.axes, colors: "fixed", ...MAP, fontSize: 12, focus: null, selected: [] }), currentPalette());
    });
  }

  protected override render(): TemplateResult {
    return html`<div class="stack">
      <p>Each model was trained on dates, and predicts the same text with another attention. In each map, a row is a step, and the columns are the positions that it attends to.</p>
      ${this.renderFailure()}
      <ul>${this.entries.map((entry) => this.renderCard(entry))}</ul>
    </div>`;
  }

  private renderCard({ model, equation, citation, description, settings, role }: GalleryEntry): TemplateResult {
    const name = this.store.models.find((each) => each.id === model)?.name ?? model;
    const link = (tab: Tab): string => `#${writeFragment({ ...INITIAL, ...pickComputed(this.store.state), edits: [], tab, model, role })}`;
    return html`<li class="panel">
      <h2>${name}</h2>
      <p class="equation">${equation}</p>
      <p class="muted small">${citation}: ${description}.</p>
      <canvas role="img" aria-label=${`The attention weights of ${name}`}></canvas>
      <p class="small"><code>${settings}</code></p>
      <nav aria-label=${name}>${LINKS.map(([tab, text]) => html`<a href=${link(tab)} aria-label=${`${text} of ${name}`}>${text}</a>`)}</nav>
    </li>`;
  }
}
