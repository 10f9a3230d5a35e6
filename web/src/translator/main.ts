/** The entry of the bundle: replace the form of the server by the page, with what was typed into the form. */
import { applyTheme } from "../palette.js";
import { Client } from "./client.js";
import { parseFragment, Store } from "./store.js";
import { KEY, TranslatorApp } from "./translator-app.js";

applyTheme();
const client = new Client();
client.key = sessionStorage.getItem(KEY) ?? "";
const store = new Store(client, parseFragment(location.hash));
const form = document.querySelector("form")!;
const text = form.querySelector("textarea")!;

void store.load().then(() => {
  const wasFocused = document.activeElement === text;
  const app = new TranslatorApp();
  app.store = store;
  document.body.replaceChildren(app);
  if (text.value) store.change({ text: text.value });
  if (wasFocused) void app.updateComplete.then(() => app.focusText());
});
