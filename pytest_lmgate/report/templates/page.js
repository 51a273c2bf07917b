"use strict";
const list = document.getElementById("list");
const gates = Array.from(list.children);
const filter = document.getElementById("filter");
const boxes = Array.from(document.querySelectorAll("#controls input[type=checkbox]"));
const buttons = Array.from(document.querySelectorAll("#head button"));
const shown = document.getElementById("shown");
gates.forEach((gate, rank) => {
  Object.assign(gate.dataset, {rank, name: gate.querySelector(".name").textContent, outcome: gate.classList[1]});
});
const words = new Map(gates.map(gate => [gate, (gate.dataset.name + " " + gate.dataset.words).toLowerCase()]));

function show() {
  const wanted = filter.value.toLowerCase().split(/\s+/);
  const outcomes = new Set(boxes.filter(box => box.checked).map(box => box.value));
  let count = 0;
  for (const gate of gates) {
    const fits = outcomes.has(gate.dataset.outcome) && wanted.every(word => words.get(gate).includes(word));
    gate.hidden = !fits;
    count += fits;
  }
  shown.textContent = count === gates.length ? "" : `${count} of ${gates.length} shown`;
}

function number(text) {
  return text === "" ? NaN : text === "inf" ? Infinity : text === "-inf" ? -Infinity : Number(text);
}

function sort(button) {
  const key = button.dataset.key;
  const downward = button.ariaPressed === "true" && !button.classList.contains("down");
  for (const other of buttons) other.ariaPressed = other === button;
  for (const other of buttons) other.classList.toggle("down", other === button && downward);
  const sign = downward ? -1 : 1;
  const compare = key === "name"
    ? (a, b) => sign * a.dataset.name.localeCompare(b.dataset.name, "en", {numeric: true})
    : (a, b) => {
        const x = number(a.dataset[key]), y = number(b.dataset[key]);
        if (Number.isNaN(x) || Number.isNaN(y)) return Number.isNaN(x) - Number.isNaN(y);  // without a number: last
        return x === y ? 0 : sign * (x < y ? -1 : 1);
      };
  list.append(...gates.sort(compare));
}

filter.addEventListener("input", show);
for (const box of boxes) box.addEventListener("change", show);
for (const button of buttons) {
  button.disabled = false;
  button.ariaPressed = button === buttons[0];
  button.addEventListener("click", () => sort(button));
}
const controls = document.getElementById("controls");
controls.addEventListener("submit", event => event.preventDefault());
controls.hidden = false;
boxes.forEach(box => { box.checked = true; });
filter.value = "";
const all = document.getElementById("all");
all.addEventListener("click", () => {
  const open = all.textContent === "Open all";
  for (const gate of gates) gate.open = open && !gate.hidden;
  all.textContent = open ? "Close all" : "Open all";
});
const opened = [];
addEventListener("beforeprint", () => {
  for (const gate of gates) {
    if (!gate.open && gate.dataset.outcome !== "pass") {
      gate.open = true;
      opened.push(gate);
    }
  }
});
addEventListener("afterprint", () => {
  for (const gate of opened.splice(0)) gate.open = false;
});
