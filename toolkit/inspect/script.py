"""Script of the page: tips on tokens, and the switch between tokens and text. The page reads well without it."""

# Titles become a tip of our own, which comes at once and on a touch; without the script they are plain titles.
SCRIPT = """
(function () {
  var root = document.documentElement, tip = document.createElement('div'), at = null;
  tip.className = 'tip'; tip.hidden = true; tip.setAttribute('role', 'tooltip');
  document.body.appendChild(tip);
  function show(target) {
    if (target.hasAttribute('title')) {
      target.setAttribute('data-tip', target.getAttribute('title'));
      target.removeAttribute('title');
    }
    at = target; tip.textContent = target.getAttribute('data-tip'); tip.hidden = false;
    var box = target.getClientRects()[0] || target.getBoundingClientRect();
    var wide = tip.offsetWidth, high = tip.offsetHeight;
    var left = Math.max(6, Math.min(box.left + box.width / 2 - wide / 2, root.clientWidth - wide - 6));
    var top = box.top - high - 8; if (top < 4) top = box.bottom + 8;
    tip.style.left = left + window.scrollX + 'px'; tip.style.top = top + window.scrollY + 'px';
  }
  function hide() { at = null; tip.hidden = true; }
  document.addEventListener('pointerover', function (event) {
    var target = event.target.closest('[title],[data-tip]');
    if (target && target !== at) show(target); else if (!target && at) hide();
  });
  document.addEventListener('pointerdown', function (event) {
    var target = event.target.closest('[title],[data-tip]'); if (target) show(target); else hide();
  });
  document.addEventListener('keydown', function (event) { if (event.key === 'Escape') hide(); });
  var rows = document.getElementById('rows');
  document.querySelectorAll('input[name=view]').forEach(function (input) {
    input.addEventListener('change', function () { rows.className = input.value; });
  });
  root.setAttribute('data-ready', document.querySelectorAll('#rows i').length);
})();
"""
