/** Set the weights of a row by sliders. The model decodes again with them. */
import { css, html, type TemplateResult } from "lit";
import { customElement, property, state } from "lit/decorators.js";
import { at } from "../arrays.js";
import { labelCell, type SelectedMap } from "../selection.js";
import { shared } from "../styles.js";
import { formatPercent } from "../trace.js";
import { StoreElement } from "./base.js";
import { renderRefusal } from "./controls.js";

/** The attention and the row that are edited. */
export interface EditedRow {
  attention: string;
  head: number | null;
  /** The row of the map, and its step. */
  row: number;
  step: number;
  /** How many keys the row has. */
  keys: number;
}

@customElement("row-editor")
export class RowEditor extends StoreElement {
  static override styles = [
    shared,
    css`
      .sliders { display: grid; grid-template-columns: minmax(2em, max-content) 1fr 4.2em; gap: 2px 8px; align-items: center; max-height: 260px; overflow: auto; }
      .sliders bdi { text-align: end; max-width: 6em; overflow: hidden; text-overflow: ellipsis; white-space: pre; }
      input[type="range"] { accent-color: var(--accent); width: 100%; min-width: 0; }
      summary { cursor: pointer; font-weight: 600; }
      details[open] summary { margin-bottom: var(--space-2); }
    `,
  ];

  @property({ attribute: false }) map!: SelectedMap;
  @property({ attribute: false }) edited!: EditedRow;
  /** The weights of the sliders; null if they are those of the model. */
  @state() private weights: number[] | null = null;
  private row = "";

  protected override willUpdate(): void {
    const { attention, head, step } = this.edited;
    const row = JSON.stringify([attention, head, step, this.store.state.edits, this.store.words]);
    if (row !== this.row) this.weights = null;
    this.row = row;
  }

  private get values(): number[] {
    return this.weights ?? [...this.map.weights.row(this.edited.row)].slice(0, this.count);
  }

  /** The number of columns that the row sees: in the self-attention of a decoder, those up to its step. */
  private get count(): number {
    return this.map.columnSpans.filter(([start]) => start < this.edited.keys).length;
  }

  protected override render(): TemplateResult {
    const { values } = this;
    const sum = values.reduce((total, value) => total + value, 0);
    const label = (column: number): string => labelCell(this.map, this.edited.row, column)[1];
    return html`<details>
      <summary>Set the weights of this row</summary>
      <div class="stack">
        <div class="sliders" role="group" aria-label="Weights">
          ${values.map(
            (value, column) => html`<bdi>${label(column)}</bdi>
              <input type="range" min="0" max="1" step="0.01" .value=${String(value)} aria-label=${`Weight of ${label(column)}, key ${column + 1}`}
                @input=${(event: Event) => this.change(column, Number((event.target as HTMLInputElement).value))} />
              <span class="number small">${formatPercent(sum > 0 ? value / sum : 0)}</span>`,
          )}
        </div>
        <p class="muted small">The weights are divided by their sum.</p>
        <div class="row">
          <button type="button" class="primary" id="set-row" ?disabled=${!this.weights || sum <= 0} @click=${this.apply}>Decode with these weights</button>
          <button type="button" ?disabled=${!this.weights} @click=${() => (this.weights = null)}>Reset</button>
        </div>
        ${renderRefusal(this.store, "row")}
      </div>
    </details>`;
  }

  private change(column: number, value: number): void {
    this.weights = this.values.map((each, index) => (index === column ? value : each));
  }

  /** The weight of a word is divided among its tokens. */
  private apply(): void {
    const { attention, head, step, keys } = this.edited;
    const weights = new Array<number>(keys).fill(0);
    this.values.forEach((value, column) => {
      const [start, end] = at(this.map.columnSpans, column);
      const last = Math.min(end, keys);
      for (let key = start; key < last; key++) weights[key] = Number((value / (last - start)).toFixed(4));
    });
    this.store.addEdit({ kind: "set_row", attention, head, step, weights }, "row");
  }
}
