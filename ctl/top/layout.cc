// SPDX-License-Identifier: Apache-2.0
#include "ctl/top/layout.h"

#include <algorithm>
#include <string>
#include <utility>

#include "common/log.h"
#include "ctl/number_texts.h"
#include "ctl/top/job_panel.h"
#include "ctl/top/looking.h"
#include "ctl/top/output_panel.h"

namespace ddprun::top {

using ctl::bytes_text, ctl::number_text, ctl::seconds_text, ctl::whole_text;

namespace {

using Lines = std::vector<Line>;

Line header(const Known& known, const Connection& connection, std::size_t columns) {
  Line line;
  using Kind = Connection::Kind;
  if (connection.kind == Kind::kLost && !connection.shown_at.empty()) {
    line.add(concat("connection lost – showing state of ", connection.shown_at), Style::kBad);
    if (!connection.why.empty()) line.add(concat(" (", connection.why, ")"));
  } else if (connection.kind != Kind::kLive) {
    line.add("ddprun top ", Style::kBold);
    line.add(concat("asks ", connection.endpoint),
             connection.why.empty() ? Style::kPlain : Style::kWarn);
    if (!connection.why.empty()) line.add(": " + connection.why);
  } else {
    line.add("ddprun top ", Style::kBold).add(connection.endpoint);
    if (known.state != nullptr) {
      const Daemon& daemon = known.state->daemon;
      line.add(concat(" · ", daemon.is_embedded ? "ddprun " : "ddprund ", daemon.version, ", up ",
                      seconds_text(daemon.uptime_seconds)),
               Style::kDim);
      if (!daemon.role.empty()) line.add(" · " + daemon.role, Style::kDim);
      line.add(concat(" · ", whole_text(daemon.num_agents),
                      daemon.num_agents == 1 ? " agent" : " agents"),
               Style::kDim);
      if (daemon.journal_kept.value_or(false)) line.add(" · journal kept", Style::kDim);
    }
  }
  line.cut(columns);
  return line;
}

Line too_large_line(double num_bytes) {
  return Line(concat("the state has ", bytes_text(num_bytes),
                     ", too much to be pushed: \"ddprunctl jobs\" shows it"),
              Style::kBad);
}

// What is wrong with the daemon itself.
Lines troubles(const Known& known, std::size_t columns) {
  Lines lines;
  const auto add = [&](const std::string& text) {
    for (const std::string& part : wrapped(text, columns, 2)) lines.emplace_back(part, Style::kBad);
  };
  const Daemon& daemon = known.state->daemon;
  if (!daemon.journal_kept.value_or(true)) {
    add("the journal is not kept: " + daemon.journal_trouble + "; decisions wait for it");
  }
  if (known.too_large_bytes > 0) lines.push_back(too_large_line(known.too_large_bytes));
  return lines;
}

std::string live_text(const Job& job) {
  std::string text = concat("round ", job.round);
  if (job.training && job.training->step > 0) {
    text += concat(" · step ", whole_text(job.training->step));
    if (job.training->loss) text += " · loss " + number_text(*job.training->loss);
  }
  if (!job.stragglers.empty()) text += concat(" · ▲ ", job.stragglers.size());
  if (const std::string waits = waits_text(job); !waits.empty()) text += " · " + waits;
  return text;
}

// One row of the list.
Line entry(const State& state, std::size_t index, bool is_chosen, std::size_t columns) {
  const bool is_live = index < state.jobs.size();
  std::string name, phase, text;
  Style style = Style::kPlain;
  if (is_live) {
    const Job& job = state.jobs[index];
    name = job.run_id;
    phase = job.phase;
    text = live_text(job);
    style = phase_style(phase);
  } else {
    const FinishedJob& job = state.finished[index - state.jobs.size()];
    name = job.run_id;
    phase = job.exit_code == 0 ? "ended" : "failed";
    text = job.exit_code == 0
               ? job.ended
               : concat("exit code ", job.exit_code, " · ", job.ended, " · ", job.reason);
    style = job.exit_code == 0 ? Style::kDim : Style::kBad;
  }
  const std::size_t most_name = std::clamp<std::size_t>(columns * 3 / 10, 8, 32);
  Line line;
  line.add(is_chosen ? "▸ " : "  ", Style::kBold);
  line.add_left(name, most_name, is_chosen ? Style::kChosen : Style::kPlain).add(" ");
  line.add_left(phase, 9, style).add(text, is_live ? Style::kPlain : Style::kDim);
  line.cut(columns);
  return line;
}

Line list_title(const State& state, std::size_t columns) {
  Line line("JOBS", Style::kTitle);
  line.add(concat(
      " ", whole_text(static_cast<std::int64_t>(state.jobs.size())), " live, ",
      whole_text(static_cast<std::int64_t>(state.finished.size() + state.num_hidden_finished)),
      " over"));
  line.cut(columns);
  return line;
}

// `rows` rows around the chosen one, without the title.
Lines list_rows(const State& state, std::size_t at, std::size_t columns, std::size_t rows) {
  Lines lines;
  const std::size_t num = num_jobs(state);
  const std::size_t shown = std::min(rows, num);
  std::size_t first = at > shown / 2 ? at - shown / 2 : 0;
  first = std::min(first, num - shown);
  for (std::size_t i = first; i < first + shown; ++i) {
    lines.push_back(entry(state, i, i == at, columns));
  }
  return lines;
}

Line job_title(const State& state, std::size_t at, std::size_t columns) {
  const bool is_live = at < state.jobs.size();
  const std::size_t num = num_jobs(state);
  const std::string place = num > 1 ? concat("job ", at + 1, " of ", num) : "";
  Line line;
  std::string phase, name;
  Style style = Style::kDim;
  if (is_live) {
    name = state.jobs[at].run_id;
    phase = state.jobs[at].phase;
    style = phase_style(phase);
  } else {
    const FinishedJob& job = state.finished[at - state.jobs.size()];
    name = job.run_id;
    phase = job.exit_code == 0 ? "succeeded" : "failed";
    style = job.exit_code == 0 ? Style::kGood : Style::kBad;
  }
  const std::size_t taken = columns_of(phase) + columns_of(place) + 6;
  const std::size_t room = columns > taken + 8 ? columns - taken : 8;
  line.add(cut_text(harmless(name), room), Style::kBold).add("  ").add(phase, style);
  if (!place.empty() && line.columns() + columns_of(place) + 2 <= columns) {
    line.pad_to(columns - columns_of(place)).add(place, Style::kDim);
  }
  line.cut(columns);
  return line;
}

Lines job_body(const Known& known, std::size_t at, NodeOrder order, const PanelSize& size) {
  const State& state = *known.state;
  if (at >= state.jobs.size()) {
    return finished_lines(state.finished[at - state.jobs.size()], size.columns);
  }
  const Job& job = state.jobs[at];
  return job_lines(job, known.history->of(job.run_id), order, size);
}

Lines help_lines(std::size_t columns) {
  Lines lines;
  lines.emplace_back("KEYS", Style::kTitle);
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
    Line line;
    line.add("  ").add_left(key, 11, Style::kBold).add(what);
    lines.push_back(line);
  }
  lines.emplace_back("RANKS", Style::kTitle);
  for (const char* what :
       {"A cell is a rank; its height: what a step takes",
        "of its own time, outside of collectives.", "▲ straggling  ! no connection  ✕ failed",
        "▸ starting  ■ stopping  ✓ finished  ○ waits",
        "ETTR: share of the time that was training"}) {
    lines.emplace_back(concat("  ", what));
  }
  for (Line& line : lines) line.cut(columns);
  return lines;
}

Line footer(const View& view, Focus focus, bool is_cut, bool has_output, std::size_t columns) {
  Line line;
  const auto add = [&](const char* key, const std::string& what) {
    Line one;
    one.add(line.empty() ? "" : "  ").add(key, Style::kBold).add(" " + what, Style::kDim);
    if (line.columns() + one.columns() <= columns) line.add(one);
  };
  add("q", "quit");
  add("?", view.has_help ? "back" : "help");
  if (view.has_help) return line;
  if (!view.typed.empty()) {
    add("Enter", concat("output of rank ", view.typed));
    add("Esc", "back");
    return line;
  }
  if (has_output) add("← →", "rank");
  add("↑↓", focus == Focus::kList ? "job" : is_cut ? "more below" : "scroll");
  add("Tab", focus == Focus::kList ? "this job" : "jobs");
  add("n", concat("nodes by ", order_name(view.order)));
  add("l", has_output ? "hide output" : "output");
  return line;
}

// So much of it as there is room for.
void add_scrolled(Lines& lines, Lines body, std::size_t scroll, std::size_t rows, Extent& extent) {
  extent.page = rows;
  extent.most_scroll = body.size() > rows ? body.size() - rows : 0;
  const std::size_t first = std::min(scroll, extent.most_scroll);
  const std::size_t end = std::min(body.size(), first + rows);
  for (std::size_t i = first; i < end; ++i) lines.push_back(std::move(body[i]));
}

}  // namespace

Picture screen_picture(const Known& known, const View& view, const Connection& connection,
                       std::size_t columns, std::size_t rows) {
  constexpr std::size_t kLeastColumns = 20, kLeastRows = 4;
  const std::size_t real_columns = columns, real_rows = rows;
  columns = std::max(columns, kLeastColumns);
  rows = std::max(rows, kLeastRows);
  Picture picture;
  Lines& lines = picture.lines;
  lines.push_back(header(known, connection, columns));
  const std::size_t body_rows = rows - 2;
  Focus focus = Focus::kJob;
  bool has_output = false;
  if (known.state != nullptr) focus = view.focus_on(*known.state);
  if (view.has_help) {
    add_scrolled(lines, help_lines(columns), view.scroll, body_rows, picture.extent);
  } else if (known.state == nullptr) {
    lines.emplace_back("nothing to show yet", Style::kDim);
    if (known.too_large_bytes > 0) lines.push_back(too_large_line(known.too_large_bytes));
  } else {
    Lines top = troubles(known, columns);
    if (top.size() * 3 > body_rows) top.resize(body_rows / 3);
    const State& state = *known.state;
    if (const auto at = chosen(state, view)) {
      if (focus == Focus::kList) {
        top.push_back(list_title(state, columns));
        const std::size_t most = std::max<std::size_t>((body_rows - top.size()) / 3, 2);
        for (Line& row : list_rows(state, *at, columns, most)) top.push_back(std::move(row));
      }
      top.push_back(job_title(state, *at, columns));
      const std::size_t rows_below = body_rows > top.size() ? body_rows - top.size() : 0;
      has_output = rows_below > 0 && has_output_panel(state, view);
      const std::size_t left = has_output ? rows_below / 2 : rows_below;
      PanelSize size{columns, std::max<std::size_t>(left / 3, 2), true};
      Lines body = job_body(known, *at, view.order, size);
      size.has_gaps = body.size() <= left;
      if (!size.has_gaps) body = job_body(known, *at, view.order, size);
      for (Line& line : top) lines.push_back(std::move(line));
      const std::size_t below = rows_below - std::min(body.size(), left);
      add_scrolled(lines, std::move(body), view.scroll, left, picture.extent);
      if (has_output) {
        for (Line& line : output_lines(state, view, known.tail, columns, below)) {
          lines.push_back(std::move(line));
        }
      }
    } else {
      for (Line& line : top) lines.push_back(std::move(line));
      lines.emplace_back("no job is here; one that joins is shown at once", Style::kDim);
    }
  }
  lines.resize(rows - 1);
  const bool is_cut =
      std::min(view.scroll, picture.extent.most_scroll) < picture.extent.most_scroll;
  lines.push_back(footer(view, focus, is_cut, has_output, columns));
  for (Line& line : lines) line.cut(real_columns);
  if (real_rows < rows) lines.resize(real_rows);
  return picture;
}

std::vector<Line> whole_picture(const Known& known, const View& view, const Connection& connection,
                                std::size_t columns) {
  constexpr std::size_t kMostJobs = 50;
  Lines lines = {header(known, connection, columns)};
  const State& state = *known.state;
  for (Line& line : troubles(known, columns)) lines.push_back(std::move(line));
  const auto at = chosen(state, view);
  if (!at) {
    lines.emplace_back("no jobs");
    return lines;
  }
  lines.push_back(list_title(state, columns));
  for (Line& row : list_rows(state, *at, columns, kMostJobs)) lines.push_back(std::move(row));
  lines.emplace_back();
  lines.push_back(job_title(state, *at, columns));
  for (Line& line : job_body(known, *at, view.order, {columns, 0, true})) {
    line.cut(columns);
    lines.push_back(std::move(line));
  }
  return lines;
}

}  // namespace ddprun::top
