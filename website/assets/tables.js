// Wide tables scroll: the keyboard can reach them.
addEventListener("load", () => document.querySelectorAll(".md-typeset__scrollwrap").forEach((table) => (table.tabIndex = 0)));
