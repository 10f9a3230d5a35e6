// Add a menu above each column of the table of mechanisms, which keeps the rows with one of its values, and their cards.
addEventListener("load", () => {
  for (const table of document.querySelectorAll(".mechanisms table")) {
    const rows = [...table.tBodies[0].rows];
    const headers = [...table.tHead.rows[0].cells].map((cell) => cell.textContent.trim());
    const controls = document.createElement("form");
    const count = document.createElement("output");
    const menus = headers.slice(1).map((header, index) => {
      const label = document.createElement("label");
      const menu = document.createElement("select");
      const values = new Set(rows.map((row) => row.cells[index + 1].textContent.trim()));
      menu.append(new Option("any", ""), ...[...values].map((value) => new Option(value, value)));
      label.append(header, menu);
      controls.append(label);
      return menu;
    });
    const filter = () => {
      for (const row of rows) {
        row.hidden = menus.some((menu, index) => menu.value && menu.value !== row.cells[index + 1].textContent.trim());
        const card = document.getElementById(row.cells[0].textContent.trim())?.closest(".card");
        if (card) card.hidden = row.hidden;
      }
      count.value = `${rows.filter((row) => !row.hidden).length} of ${rows.length} mechanisms`;
    };
    controls.className = "filter";
    controls.append(count);
    controls.addEventListener("change", filter);
    table.closest(".mechanisms").prepend(controls);
    filter();
  }
});
