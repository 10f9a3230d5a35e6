/** The dialog Export: a figure for a paper, a page for somebody else, the data, or a link. */
import { css, html, type TemplateResult } from "lit";
import { customElement, query, state } from "lit/decorators.js";
import { createJson, createPage, createSvg, download, renderPng } from "../export.js";
import type { Figure } from "../figures.js";
import { shared } from "../styles.js";
import { StoreElement, type View } from "./base.js";

/** How large the text of a figure may be, in pixels of the screen. */
const [SMALLEST, LARGEST] = [8, 32];

type Format = "png" | "svg" | "json" | "html" | "link";

@customElement("export-dialog")
export class ExportDialog extends StoreElement {
  static override styles = [
    shared,
    css`
      dialog { border: 1px solid var(--line-strong); border-radius: var(--radius); background: var(--panel); color: var(--ink); padding: var(--space-4); width: min(620px, 92vw); }
      dialog::backdrop { background: rgb(0 0 0 / 0.4); }
      section { display: grid; gap: var(--space-2); padding-block: var(--space-3); border-top: 1px solid var(--line); }
      .head button { margin-inline-start: auto; }
      .line { display: grid; gap: 2px; font-size: var(--size-1); color: var(--muted); }
      .line input, textarea, input[type="number"] { font: inherit; font-size: var(--size-2); color: var(--ink); padding: 6px 10px; min-height: 36px; background: var(--control); border: 1px solid var(--line-strong); border-radius: 8px; }
      input[type="number"] { width: 5em; }
      fieldset { border: 0; margin: 0; padding: 0; display: grid; gap: 4px; }
      legend { padding: 0; font-size: var(--size-1); color: var(--muted); }
      fieldset bdi { overflow-wrap: anywhere; }
      input[type="checkbox"] { accent-color: var(--accent); width: 17px; height: 17px; flex: none; }
    `,
  ];

  /** The view that is exported. */
  view: View | null = null;
  @state() private isBusy = false;
  /** The sources besides the present one that the page contains, by their keys. */
  @state() private chosen: ReadonlySet<string> = new Set();
  @state() private withCorpus = false;
  @query("dialog") private dialog!: HTMLDialogElement;

  get isOpen(): boolean {
    return this.dialog?.open ?? false;
  }

  open(view: View): void {
    this.view = view;
    this.withCorpus = this.store.state.tab === "corpus";
    this.requestUpdate();
    this.dialog.showModal();
  }

  protected override render(): TemplateResult {
    return html`<dialog aria-labelledby="title">
      <div class="row head"><h2 id="title">Export</h2><button type="button" class="quiet" id="close" @click=${() => this.dialog.close()}>Close</button></div>
      ${this.renderFigure()} ${this.store.client.isLive ? this.renderPage() : this.renderCopy()} ${this.renderData()}
      ${this.store.client.isLive ? this.renderLink() : ""}
    </dialog>`;
  }

  private renderButton(format: Format, name: string, isPossible: boolean): TemplateResult {
    return html`<button type="button" data-format=${format} ?disabled=${!isPossible || this.isBusy} @click=${() => void this.export(format)}>${name}</button>`;
  }

  private renderFigure(): TemplateResult {
    const hasFigure = Boolean(this.view?.createPaperFigure(SMALLEST));
    return html`<section aria-label="Figure">
      <h3>Figure of this tab</h3>
      <div class="row">
        <label class="field">Font size <input type="number" id="font-size" min=${SMALLEST} max=${LARGEST} value="14" /></label>
        <label class="field">PNG resolution <select id="scale"><option value="2">2×</option><option value="3" selected>3×</option></select></label>
        ${this.renderButton("png", "PNG", hasFigure)} ${this.renderButton("svg", "SVG", hasFigure)}
      </div>
      <p class="muted small">${hasFigure ? "On white, with names of axes and a color scale, without the cursor. SVG keeps text as text." : "This view has no drawing."}</p>
    </section>`;
  }

  private renderPage(): TemplateResult {
    const { store } = this;
    const visits = [...store.visits].reverse();
    return html`<section aria-label="Page">
      <h3>Page that works offline</h3>
      <label class="line">Title <input id="page-title" maxlength="200" /></label>
      <label class="line">Caption <input id="caption" maxlength="1000" /></label>
      <label class="line">Author's note <textarea id="note" rows="2" maxlength="10000"></textarea></label>
      ${visits.length > 1
        ? html`<fieldset><legend>Other examples</legend>
            ${visits.slice(1).map(([key, { state: visited }]) => html`<label class="row"><input type="checkbox" data-example .checked=${this.chosen.has(key)} @change=${() => this.toggle(key)} /><bdi>${store.describeSource(visited)}</bdi></label>`)}
          </fieldset>`
        : ""}
      ${store.listCorpora().length
        ? html`<label class="row"><input type="checkbox" id="with-corpus" .checked=${this.withCorpus} @change=${() => (this.withCorpus = !this.withCorpus)} />The ${store.splitName} with its predictions</label>`
        : ""}
      <div class="row">${this.renderButton("html", "Save the HTML file", store.isCurrent)}</div>
      <p class="muted small">One file with everything that was computed for these examples: comparisons, edits, attributions. It makes no request.</p>
    </section>`;
  }

  /** An exported page contains its documents only, so it can be copied as it is. */
  private renderCopy(): TemplateResult {
    return html`<section aria-label="Page">
      <h3>This page</h3>
      <div class="row">${this.renderButton("html", "Save a copy", true)}</div>
      <p class="muted small">To share this page, send its file. The address in the browser is that of the file on this computer.</p>
    </section>`;
  }

  private renderData(): TemplateResult {
    return html`<section aria-label="Data"><h3>Data of this tab</h3><div class="row">${this.renderButton("json", "JSON", this.view !== null && "data" in this.view)}</div></section>`;
  }

  private renderLink(): TemplateResult {
    return html`<section aria-label="Link">
      <h3>Link</h3>
      <div class="row">${this.renderButton("link", "Copy link", true)}</div>
      <p class="muted small" id="link-reach">${this.describeLink()}</p>
    </section>`;
  }

  /** Say who can open a link to this page. */
  private get reach(): string {
    const { hostname, host } = location;
    return /^(localhost|127\.[\d.]+|\[::1\])$/.test(hostname)
      ? "It opens on this computer only, while regard explore runs."
      : `It opens on computers that reach ${host}, while regard explore runs there.`;
  }

  private describeLink(): string {
    const { example, text } = this.store.state;
    const image = this.store.readsImages && example === null && text ? " It does not contain the image." : "";
    return `${this.reach}${image} To send this page to somebody, save the HTML file.`;
  }

  private toggle(key: string): void {
    const chosen = new Set(this.chosen);
    if (!chosen.delete(key)) chosen.add(key);
    this.chosen = chosen;
  }

  private read(selector: string): string {
    return this.shadowRoot!.querySelector<HTMLInputElement | HTMLTextAreaElement | HTMLSelectElement>(selector)!.value.trim();
  }

  private async export(format: Format): Promise<void> {
    this.isBusy = true;
    const message = await this.save(format).catch((reason: Error) => reason.message);
    this.isBusy = false;
    this.dialog.close();
    this.dispatchEvent(new CustomEvent("exported", { detail: message }));
  }

  /** Save a file, or copy the link. Return what was done. */
  private async save(format: Format): Promise<string> {
    const name = `regard-${this.store.state.tab}`;
    switch (format) {
      case "png":
        download(await renderPng(this.paperFigure, Number(this.read("#scale"))), `${name}.png`);
        return "PNG file saved.";
      case "svg":
        download(createSvg(this.paperFigure), `${name}.svg`);
        return "SVG file saved.";
      case "json":
        download(createJson(this.view!.data), `${name}.json`);
        return "JSON file saved.";
      case "link":
        this.store.writeUrl();
        await navigator.clipboard.writeText(location.href);
        return `Link copied. ${this.reach} To send this page, save the HTML file.`;
      case "html": {
        const page = await this.createPage();
        download(page, `${name}.html`);
        return `HTML file saved, ${(page.size / 1e6).toFixed(1)} MB. It works offline.`;
      }
    }
  }

  private get paperFigure(): Figure {
    return this.view!.createPaperFigure(Math.max(SMALLEST, Math.min(LARGEST, Number(this.read("#font-size")) || 14)))!;
  }

  private createPage(): Promise<Blob> {
    const { store } = this;
    if (!store.client.isLive) return createPage(store, { visits: [], corpus: false });
    const [present, ...others] = [...store.visits].reverse();
    const visits = [present!, ...others.filter(([key]) => this.chosen.has(key))].map(([, visit]) => visit);
    const corpus = this.withCorpus && store.listCorpora().length > 0;
    return createPage(store, { visits, corpus, title: this.read("#page-title"), caption: this.read("#caption"), note: this.read("#note") });
  }
}
