// SPDX-License-Identifier: Apache-2.0
// The changes between two states, as sentences. No elements.

const most_sentences = 20;  // of one state: a screen reader says them

// By name, as far as it is one: of two with a name the last one counts.
const by_run_id = (jobs) => new Map(jobs.map((job) => [job.run_id, job]));

function node_sentences(before, now, say) {
  const earlier = new Map(before.nodes.map((node) => [`${node.host} ${node.addr}`, node]));
  const current = new Map(now.nodes.map((node) => [`${node.host} ${node.addr}`, node]));
  const came = [], lost = [], back = [], gone = [];
  for (const [key, node] of current) {
    const old = earlier.get(key);
    if (!old) came.push(node.host);
    else if (old.connected && !node.connected) lost.push(node_name(node));
    else if (!old.connected && node.connected) back.push(node_name(node));
  }
  if (before.num_hidden === 0 && now.num_hidden === 0) {
    for (const [key, node] of earlier) if (!current.has(key)) gone.push(node_name(node));
    if (came.length > 0) say(`${names_text(came)} came`);
    if (gone.length > 0) say(`${names_text(gone)} is gone`);
  }
  if (lost.length > 0) say(`the connection to ${names_text(lost)} is lost`, "bad");
  if (back.length > 0) say(`${names_text(back)} is back`, "good");
}

function job_sentences(before, now, say) {
  if (now.round > before.round) {
    const ended = now.rounds.find((round) => round.round === now.round - 1);
    say(`round ${now.round} began${ended?.cause ? `, since ${ended.cause}` : ""}`, before.round > 0 ? "bad" : "");
  } else if (now.phase !== before.phase) {
    const last = now.rounds[now.rounds.length - 1];
    if (now.phase === "stopping") say(`its workers are being stopped${last?.cause ? `: ${last.cause}` : ""}`, "bad");
    else if (now.phase === "forming") say("waits for nodes");
    else if (now.phase === "running") say("runs", "good");
  }
  if (now.exit_code !== undefined && before.exit_code === undefined) say(end_sentence(now), now.exit_code ? "bad" : "good");
  if (now.hang && now.hang.text !== before.hang?.text) say(now.hang.text, "bad");
  const known = new Set(before.stragglers.map(rank_named));
  const slow = now.stragglers.map(rank_named).filter((rank) => !known.has(rank));
  if (slow.length > 0) say(slow.length === 1 ? `rank ${slow[0]} lags behind` : `ranks ${names_text(slow.map(String))} lag behind`, "bad");
  node_sentences(before, now, say);
}

const end_sentence = (job) => job.exit_code === 0 ? "ended well" : `ended with exit code ${job.exit_code}: ${job.reason}`;

// [{ text, mood }]: mood is "good", "bad" or "".
function happenings(before, now) {
  const found = [];
  const say_of = (job) => (text, mood = "") => found.push({ text: `${job.run_id}: ${text}`, mood });
  const earlier = by_run_id(before.jobs), current = by_run_id(now.jobs);
  for (const [id, job] of current) {
    const old = earlier.get(id);
    if (old) job_sentences(old, job, say_of(job));
    else say_of(job)(`is here: ${job.phase}`);
  }
  const key_of = (job) => `${job.run_id} ${job.began}`;
  const known = new Set(before.finished.map(key_of));
  for (const job of now.finished) {
    if (known.has(key_of(job)) || earlier.get(job.run_id)?.exit_code !== undefined) continue;
    say_of(job)(end_sentence(job), job.exit_code ? "bad" : "good");
  }
  const finished = by_run_id(now.finished);
  for (const [id, job] of earlier) {
    if (!current.has(id) && !finished.has(id) && job.exit_code === undefined) say_of(job)("is not here any more");
  }
  return found.slice(0, most_sentences);
}
