// The page reloads itself when the server went away and came back: a restarted server knows no old sessions.
(function () {
  const QUIET_MS = 4000, GIVE_UP_MS = 8000, CHECK_MS = 1000;
  const ANSWER_MS = 60000;  // a busy machine takes long to make a page
  let lastCheck = Date.now(), asking = false;
  async function check() {
    const now = Date.now();
    const slept = now - lastCheck > 5 * CHECK_MS;
    lastCheck = now;
    const beat = window.__djinnBeat;
    if (beat === undefined) return;
    if (slept) { window.__djinnBeat = now; return; }
    const quiet = now - beat;
    document.getElementById("offline").classList.toggle("on", quiet > QUIET_MS);
    if (quiet < GIVE_UP_MS || asking) return;
    asking = true;
    try {
      const answer = await fetch(window.location.href, { cache: "no-store", signal: AbortSignal.timeout(ANSWER_MS) });
      if (answer.ok && Date.now() - window.__djinnBeat > GIVE_UP_MS) window.location.reload();
    } catch (error) {
      // Still away; the next check tries again.
    } finally {
      asking = false;
    }
  }
  setInterval(check, CHECK_MS);
  // The address holds the page's whole state, so going back is opening the earlier address.
  window.addEventListener("popstate", () => window.location.reload());
})();
