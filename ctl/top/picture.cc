// SPDX-License-Identifier: Apache-2.0
#include "ctl/top/picture.h"

#include <algorithm>
#include <utility>

#include "common/log.h"
#include "ctl/number_texts.h"

namespace ddprun::top {

using ctl::bytes_text, ctl::count_text, ctl::number_text, ctl::seconds_text, ctl::whole_text;

namespace {

std::string header(const Known& known, const Connection& connection) {
  const std::string& why = connection.why;
  if (!connection.is_live && !connection.shown_at.empty()) {
    return concat(kBad, "connection lost – showing state of ", connection.shown_at, kPlain,
                  why.empty() ? "" : concat(" (", why, ")"));
  }
  const std::string line = concat(kBold, "ddprun top ", kPlain);
  if (!connection.is_live) {
    return line + (why.empty() ? concat("asks ", connection.endpoint)
                               : concat(kWarn, "asks ", connection.endpoint, kPlain, ": ", why));
  }
  if (known.state == nullptr) return line + connection.endpoint;
  const json::value& daemon = known.state->daemon;
  const std::string role = text(daemon, "role");
  const bool is_kept = member(member(daemon, "journal"), "kept") == json::value(true);
  return concat(line, connection.endpoint, kDim, " · ",
                member(daemon, "embedded") == json::value(true) ? "ddprun " : "ddprund ",
                text(daemon, "version"), ", up ",
                seconds_text(number(daemon, "uptime_seconds").value_or(0)),
                role.empty() ? "" : " · " + role, " · ",
                count_text(whole(member(daemon, "agents"), "joined"), "agent"),
                is_kept ? " · journal kept" : "");
}

// The daemon's own faults.
Lines troubles(const Known& known, std::size_t columns) {
  Lines lines;
  if (known.state != nullptr) {
    const json::value& journal = member(known.state->daemon, "journal");
    if (member(journal, "kept") == json::value(false)) {
      add_wrapped(
          lines,
          concat("the journal is not kept: ", text(journal, "trouble"), "; decisions wait for it"),
          columns, kBad, 2);
    }
  }
  if (known.too_large_bytes > 0) {
    lines.push_back(concat(kBad, "the state has ", bytes_text(known.too_large_bytes),
                           ", too much to be pushed: \"ddprunctl jobs\" shows it"));
  }
  return lines;
}

struct Phase {
  std::string text;
  char style = kPlain;
};
Phase phase_of(const Job& job) {
  const std::string phase = text(job.said, "phase");
  if (!job.is_over) return {phase, phase_style(phase)};
  return whole(job.said, "exit_code") == 0 ? Phase{"succeeded", kGood} : Phase{"failed", kBad};
}

// The job's words in the list.
std::string summary_of(const Job& job) {
  const std::int64_t code = whole(job.said, "exit_code");
  if (job.is_over && code == 0) return text(job.said, "ended");
  if (job.is_over) {
    return concat("exit code ", code, " · ", text(job.said, "ended"), " · ",
                  text(job.said, "reason"));
  }
  std::string words = concat("round ", whole(job.said, "round"));
  const json::value& training = member(job.said, "training");
  if (const std::int64_t step = whole(training, "step"); step > 0) {
    words += " · step " + whole_text(step);
    if (const auto loss = number(training, "loss")) words += " · loss " + number_text(*loss);
  }
  const std::size_t num_slow = list(job.said, "stragglers").size();
  if (num_slow > 0) words += concat(" · ▲ ", num_slow);
  const std::string waits = waits_text(job);
  return waits.empty() ? words : concat(words, " · ", waits);
}

// `most` jobs around the chosen one.
Lines job_list(const State& state, std::size_t chosen, std::size_t columns, std::size_t most) {
  const std::size_t num_over = state.jobs.size() - state.num_live + state.num_hidden_over;
  Lines lines = {concat(kTitle, "JOBS", kPlain, ' ', state.num_live, " live, ", num_over, " over")};
  const std::size_t shown = std::min(most, state.jobs.size());
  const std::size_t first =
      std::min(chosen - std::min(chosen, shown / 2), state.jobs.size() - shown);
  for (std::size_t i = first; i < first + shown; ++i) {
    const Job& job = state.jobs[i];
    const Phase phase = phase_of(job);
    const std::size_t most_name = std::clamp<std::size_t>(columns * 3 / 10, 8, 32);
    lines.push_back(concat(kBold, i == chosen ? "▸ " : "  ", i == chosen ? kChosen : kPlain,
                           left(harmless(job.run_id), most_name), kPlain, ' ', phase.style,
                           left(phase.text, 10), job.is_over ? kDim : kPlain, summary_of(job)));
  }
  return lines;
}

std::string job_title(const State& state, std::size_t at, std::size_t columns) {
  const Phase phase = phase_of(state.jobs[at]);
  const std::string place =
      state.jobs.size() > 1 ? concat("job ", at + 1, " of ", state.jobs.size()) : "";
  const std::size_t taken = columns_of(phase.text) + place.size() + 6;
  const std::size_t room = columns > taken + 8 ? columns - taken : 8;
  const std::string line = concat(kBold, cut(harmless(state.jobs[at].run_id), room), kPlain, "  ",
                                  phase.style, phase.text);
  if (columns_of(line) + place.size() + 2 > columns) return line;
  return concat(left(line, columns - place.size()), kDim, place);
}

// Exactly `rows` lines of what a rank wrote last, the newest at the bottom, each on as many rows as
// it needs.
Lines output_lines(const State& state, const View& view, const json::value* tail,
                   std::size_t columns, std::size_t rows) {
  constexpr std::size_t kMostNote = 3, kMostRows = 4'096;  // of one line: all of it
  std::string note = view.live_job(state) ? view.why_not_asked(state)
                                          : "the job is over; these lines are what was shown last";
  if (note.empty() && tail == nullptr) note = "asking its agent …";
  if (note.empty()) note = text(*tail, "note");
  const std::vector<std::string> said = tail == nullptr ? Lines() : texts(*tail, "lines");
  if (note.empty() && said.empty()) note = "it has printed nothing yet";
  Lines lines = {concat(kTitle, "OUTPUT of rank ", view.rank)};
  if (columns_of(lines[0]) + 2 + columns_of(note) <= columns) {
    lines[0] += concat(kPlain, "  ", kDim, note);
  } else {
    add_wrapped(lines, note, columns, kDim, std::min(kMostNote, rows / 2));
  }
  lines.resize(std::min(lines.size(), rows));
  Lines newest;
  for (std::size_t i = said.size(); i-- > 0 && newest.size() < rows - lines.size();) {
    Lines parts;
    add_wrapped(parts, said[i], columns, kPlain, kMostRows);
    if (parts.empty()) parts.emplace_back();
    newest.insert(newest.begin(), parts.begin(), parts.end());
  }
  const std::size_t shown = std::min(newest.size(), rows - lines.size());
  lines.resize(rows - shown);
  lines.insert(lines.end(), newest.end() - static_cast<std::ptrdiff_t>(shown), newest.end());
  return lines;
}

Lines help_lines() {
  Lines lines = {concat(kTitle, "KEYS")};
  for (const auto& [key, what] :
       {std::pair{"↑ ↓  j k", "another job; of one job: scroll"},
        std::pair{"Enter Tab", "the list of jobs, or one job"},
        std::pair{"PgUp PgDn", "scroll by a page; also b, Space"},
        std::pair{"g G", "the first, the last"},
        std::pair{"n", "order of nodes: rank, CPU, GPU, network, step"},
        std::pair{"l", "what a rank prints, or no more of it"},
        std::pair{"← →  [ ]", "of the rank before, after"}, std::pair{"12 Enter", "of rank 12"},
        std::pair{"^L", "draw all of it again"}, std::pair{"? Esc", "this help, and back"},
        std::pair{"q ^C", "quit"}}) {
    lines.push_back(concat("  ", kBold, left(key, 11), kPlain, what));
  }
  lines.push_back(concat(kTitle, "RANKS"));
  for (const char* what :
       {"A cell is a rank; its height: what a step takes",
        "of its own time, outside of collectives.", "▲ straggling  ! no connection  ✕ failed",
        "▸ starting  ■ stopping  ✓ finished  ○ waits",
        "ETTR: share of the time that was training"}) {
    lines.push_back(concat("  ", what));
  }
  return lines;
}

std::string footer(const View& view, bool has_list, bool is_cut, bool has_output,
                   std::size_t columns) {
  std::string line;
  const auto add = [&](const char* key, const std::string& what) {
    const std::string one = concat(line.empty() ? "" : "  ", kBold, key, kDim, ' ', what);
    if (columns_of(line) + columns_of(one) <= columns) line += one;
  };
  add("q", "quit");
  add("?", view.has_help ? "back" : "help");
  if (view.has_help) return line;
  if (!view.typed.empty()) {
    add("Enter", "output of rank " + view.typed);
    add("Esc", "back");
    return line;
  }
  if (has_output) add("← →", "rank");
  add("↑↓", has_list ? "job" : is_cut ? "more below" : "scroll");
  add("Tab", has_list ? "this job" : "jobs");
  add("n", concat("nodes by ", order_name(view.order)));
  add("l", has_output ? "hide output" : "output");
  return line;
}

}  // namespace

Picture screen_picture(const Known& known, const View& view, const Connection& connection,
                       std::size_t real_columns, std::size_t real_rows) {
  constexpr std::size_t kLeastColumns = 20, kLeastRows = 4;
  const std::size_t columns = std::max(real_columns, kLeastColumns);
  const std::size_t rows = std::max(real_rows, kLeastRows), body_rows = rows - 2;
  const State none;
  const State& state = known.state == nullptr ? none : *known.state;
  const auto at = view.chosen(state);
  const bool has_list = at && view.shows_list(state);
  Lines above, body, output;
  std::size_t room = body_rows;  // of the body
  if (view.has_help) {
    body = help_lines();
  } else {
    above = troubles(known, columns);
    above.resize(std::min(above.size(), std::max<std::size_t>(body_rows / 3, known.state ? 0 : 1)));
    if (has_list) {
      const std::size_t most = std::max<std::size_t>((body_rows - above.size()) / 3, 2);
      for (std::string& line : job_list(state, *at, columns, most)) above.push_back(line);
    }
    above.push_back(at                       ? job_title(state, *at, columns)
                    : known.state == nullptr ? concat(kDim, "nothing to show yet")
                                             : concat(kDim, "no jobs"));
    const std::size_t below = body_rows - std::min(above.size(), body_rows);
    const bool has_output = below > 0 && view.shows_output(state);
    room = has_output ? below / 2 : below;
    if (at) {
      const Job& job = state.jobs[*at];
      PanelSize size{columns, std::max<std::size_t>(room / 3, 2), true};
      body = job_lines(job, known.history->of(job.run_id), view.order, size);
      size.has_gaps = body.size() <= room;
      if (!size.has_gaps) body = job_lines(job, known.history->of(job.run_id), view.order, size);
    }
    if (has_output) {
      output = output_lines(state, view, known.tail, columns, below - std::min(body.size(), room));
    }
  }
  Picture picture;
  picture.extent = {body.size() > room ? body.size() - room : 0, room};
  const std::size_t scroll = std::min(view.scroll, picture.extent.most_scroll);
  body.erase(body.begin(), body.begin() + static_cast<std::ptrdiff_t>(scroll));
  body.resize(std::min(body.size(), room));
  Lines& lines = picture.lines;
  lines.push_back(header(known, connection));
  for (const Lines* part : {&above, &body, &output})
    lines.insert(lines.end(), part->begin(), part->end());
  lines.resize(rows - 1);
  lines.push_back(
      footer(view, has_list, scroll < picture.extent.most_scroll, !output.empty(), columns));
  for (std::string& line : lines) line = cut(line, real_columns);
  lines.resize(std::min(real_rows, rows));
  return picture;
}

Lines paper_picture(const Known& known, const View& view, const Connection& connection,
                    std::size_t columns) {
  constexpr std::size_t kNoEnd = 100'000;
  Lines lines = screen_picture(known, view, connection, columns, kNoEnd).lines;
  lines.pop_back();  // keys
  while (lines.back().empty()) lines.pop_back();
  return lines;
}

}  // namespace ddprun::top
