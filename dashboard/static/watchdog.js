// The page reloads itself when the server went away and came back: a restarted server knows no old sessions.
(function () {
  const QUIET_MS = 6000, GIVE_UP_MS = 12000, CHECK_MS = 2000;
  let lastCheck = Date.now();
  async function check() {
    const now = Date.now();
    const slept = now - lastCheck > 3 * CHECK_MS;
    lastCheck = now;
    const beat = window.__djinnBeat;
    if (beat === undefined) return;
    if (slept) { window.__djinnBeat = now; return; }
    const quiet = now - beat;
    document.getElementById("offline").classList.toggle("on", quiet > QUIET_MS);
    if (quiet < GIVE_UP_MS) return;
    try {
      const answer = await fetch(window.location.href, { cache: "no-store", signal: AbortSignal.timeout(CHECK_MS) });
      if (answer.ok && Date.now() - window.__djinnBeat > GIVE_UP_MS) window.location.reload();
    } catch (error) {
      // Still away; the next check tries again.
    }
  }
  setInterval(check, CHECK_MS);
})();
