// SPDX-License-Identifier: Apache-2.0
#include "ctl/top/picture.h"

#include <curses.h>

#include <algorithm>
#include <array>
#include <boost/json/serialize.hpp>
#include <limits>
#include <span>
#include <utility>

#include "common/text.h"
#include "ctl/number_texts.h"

namespace ddprun::top {

using ctl::bytes_text, ctl::count_text, ctl::number_text, ctl::seconds_text, ctl::whole_text;

namespace {

constexpr int kEscape = 27, kDelete = 127;
constexpr std::array kOrders = {"rank", "CPU", "GPU, idle first", "network", "step time"};

bool is_enter(int key) { return key == '\r' || key == '\n' || key == KEY_ENTER; }

std::size_t moved(std::int64_t from, std::int64_t steps, std::int64_t last) {
  return std::clamp<std::int64_t>(from + steps, 0, last);
}

std::string header(const Known& known) {
  const std::string& why = known.why;
  if (!known.is_live && !known.shown_at.empty()) {
    return concat(kBad, "connection lost – showing state of ", known.shown_at, kPlain,
                  why.empty() ? "" : concat(" (", why, ")"));
  }
  const std::string line = concat(kBold, "ddprun top ", kPlain);
  if (!known.is_live && why.empty()) return concat(line, "asks ", known.endpoint);
  if (!known.is_live) return concat(line, kWarn, "asks ", known.endpoint, kPlain, ": ", why);
  if (known.shown_at.empty()) return line + known.endpoint;
  const json::value& daemon = known.state.daemon;
  const std::string role = text(daemon, "role");
  return concat(line, known.endpoint, kDim, " · ",
                at(daemon, "embedded") == json::value(true) ? "ddprun " : "ddprund ",
                text(daemon, "version"), ", up ",
                seconds_text(number(daemon, "uptime_seconds").value_or(0)),
                role.empty() ? "" : " · " + role, " · ",
                count_text(whole(daemon, "agents", "joined"), "agent"),
                at(daemon, "journal", "kept") == json::value(true) ? " · journal kept" : "");
}

// Shows the daemon's own problems.
Lines troubles(const Known& known, std::size_t columns, std::size_t most) {
  Lines lines;
  const json::value& daemon = known.state.daemon;
  if (at(daemon, "journal", "kept") == json::value(false)) {
    add_wrapped(lines,
                concat("the journal is not kept: ", text(daemon, "journal", "trouble"),
                       "; decisions wait for it"),
                columns, kBad, 2);
  }
  if (known.too_large_bytes > 0) {
    lines.push_back(concat(kBad, "the state has ", bytes_text(known.too_large_bytes),
                           ", too much to be pushed: \"ddprunctl jobs\" shows it"));
  }
  lines.resize(std::min(lines.size(), most));
  return lines;
}

std::string phase_of(const Job& job) {
  if (!job.is_over) return text(job.said, "phase");
  return whole(job.said, "exit_code") == 0 ? "succeeded" : "failed";
}

char style_of(const std::string& phase) {
  if (phase == "running" || phase == "succeeded") return kGood;
  return phase == "stopping" || phase == "failed" ? kBad : phase == "ended" ? kDim : kWarn;
}

// Returns the job's text in the list.
std::string summary_of(const Job& job) {
  const std::int64_t code = whole(job.said, "exit_code");
  const std::string ended = text(job.said, "ended");
  if (job.is_over && code == 0) return ended;
  if (job.is_over) return concat("exit code ", code, " · ", ended, " · ", text(job.said, "reason"));
  std::string words = concat("round ", whole(job.said, "round"));
  if (const std::int64_t step = whole(job.said, "training", "step"); step > 0) {
    words += " · step " + whole_text(step);
    if (const auto loss = job.figures[kLoss]) words += " · loss " + number_text(*loss);
  }
  const std::size_t num_slow = list(job.said, "stragglers").size();
  if (num_slow > 0) words += concat(" · ▲ ", num_slow);
  const std::string waits = waits_text(job);
  return waits.empty() ? words : concat(words, " · ", waits);
}

// Shows `most` jobs around the chosen one.
Lines job_list(const State& state, const Job& chosen, std::size_t columns, std::size_t most) {
  const std::size_t num_over = state.jobs.size() - state.num_live + state.num_hidden_over;
  Lines lines = {concat(kTitle, "JOBS", kPlain, ' ', state.num_live + state.num_hidden_live,
                        " live, ", num_over, " over")};
  if (state.num_hidden_live > 0) lines.back() += concat("; ", state.num_hidden_live, " not shown");
  const auto index = static_cast<std::size_t>(&chosen - state.jobs.data());
  const std::size_t shown = std::min(most, state.jobs.size());
  const std::size_t first = std::min(index - std::min(index, shown / 2), state.jobs.size() - shown);
  for (const Job& job : std::span(state.jobs).subspan(first, shown)) {
    const std::string phase = phase_of(job);
    const std::size_t most_name = std::clamp<std::size_t>(columns * 3 / 10, 8, 32);
    const bool is_chosen = &job == &chosen;
    lines.push_back(concat(kBold, is_chosen ? "▸ " : "  ", is_chosen ? kChosen : kPlain,
                           left(harmless(job.run_id), most_name), kPlain, ' ', style_of(phase),
                           left(phase, 10), job.is_over ? kDim : kPlain, summary_of(job)));
  }
  return lines;
}

std::string job_title(const State& state, const Job& job, std::size_t columns) {
  const std::string phase = phase_of(job);
  const std::string place = state.jobs.size() > 1 ? concat("job ", &job - state.jobs.data() + 1,
                                                           " of ", state.jobs.size())
                                                  : "";
  const std::size_t taken = columns_of(phase) + place.size() + 6;
  const std::size_t room = columns > taken + 8 ? columns - taken : 8;
  const std::string line =
      concat(kBold, cut(harmless(job.run_id), room), kPlain, "  ", style_of(phase), phase);
  if (columns_of(line) + place.size() + 2 > columns) return line;
  return concat(left(line, columns - place.size()), kDim, place);
}

// Shows a rank's last output on exactly `rows` lines, the newest at the bottom. A long line takes
// as many rows as it needs.
Lines output_lines(const Known& known, const View& view, std::size_t columns, std::size_t rows) {
  constexpr std::size_t kMostNote = 3, kMostRows = 4'096;  // of a line: all of its rows
  const Lines said = texts(known.tail, "lines");
  std::string note = view.live_job(known.state)
                         ? view.why_not_asked(known.state)
                         : "the job is over; these lines are what was shown last";
  if (note.empty() && known.tail.is_null()) note = "asking its agent …";
  if (note.empty()) note = text(known.tail, "note");
  if (note.empty() && said.empty()) note = "it has printed nothing yet";
  Lines lines = {concat(kTitle, "OUTPUT of rank ", view.rank)};
  if (columns_of(lines[0]) + 2 + columns_of(note) <= columns) {
    lines[0] += concat(kPlain, "  ", kDim, note);
  } else {
    add_wrapped(lines, note, columns, kDim, std::min(kMostNote, rows / 2));
  }
  lines.resize(std::min(lines.size(), rows));
  Lines all;
  for (const std::string& each : said) {
    add_wrapped(all, each.empty() ? " " : each, columns, kPlain, kMostRows);
  }
  const std::size_t shown = std::min(all.size(), rows - lines.size());
  lines.resize(rows - shown);
  append(lines, std::span(all).last(shown));
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
       {"  A cell is a rank; its height: what a step takes",
        "  of its own time, outside of collectives.", "  ▲ straggling  ! no connection  ✕ failed",
        "  ▸ starting  ■ stopping  ✓ finished  ○ waits",
        "  ETTR: share of the time that was training"}) {
    lines.emplace_back(what);
  }
  return lines;
}

std::string footer(const View& view, bool has_list, bool has_output, std::size_t columns) {
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
  add("↑↓", has_list ? "job" : view.scroll < view.most_scroll ? "more below" : "scroll");
  add("Tab", has_list ? "this job" : "jobs");
  add("n", concat("nodes by ", order_name(view.order)));
  add("l", has_output ? "hide output" : "output");
  return line;
}

}  // namespace

const char* order_name(NodeOrder order) { return kOrders.at(order); }

const Job* View::chosen(const State& state) const {
  auto job = std::ranges::find(state.jobs, wanted, &Job::key);
  // The chosen job may be over now, or be live again.
  const std::string run_id = wanted.substr(0, wanted.find('\n'));
  if (job == state.jobs.end()) job = std::ranges::find(state.jobs, run_id, &Job::run_id);
  if (job == state.jobs.end()) job = state.jobs.begin();
  return state.jobs.empty() ? nullptr : &*job;
}

const Job* View::live_job(const State& state) const {
  const Job* job = chosen(state);
  return job != nullptr && !job->is_over ? job : nullptr;
}

bool View::shows_output(const State& state) const {
  const Job* job = chosen(state);
  return has_output && job != nullptr && job->run_id == output_of;
}

void View::settle(const State& state) {
  const Job* job = live_job(state);
  if (!has_output || job == nullptr || job->run_id == output_of) return;
  output_of = job->run_id;
  rank = rank_of_interest(*job);
}

// False: the key isn't about the output.
bool View::press_output_key(int key, const Job* job) {
  constexpr std::size_t kMostDigits = 9;
  const bool is_before = key == '[' || key == KEY_LEFT;
  if (key >= '0' && key <= '9') {
    if (typed.size() < kMostDigits) typed += static_cast<char>(key);
  } else if (key == KEY_BACKSPACE || key == '\b' || key == kDelete) {
    if (!typed.empty()) typed.pop_back();
  } else if (!typed.empty() && (key == kEscape || is_enter(key))) {
    const std::string digits = std::exchange(typed, "");
    if (key == kEscape || job == nullptr) return true;
    has_output = true;
    output_of = job->run_id;
    rank = std::stoll(digits);
  } else if (key == 'l') {
    has_output = !has_output;
    output_of.clear();
  } else if (is_before || key == ']' || key == KEY_RIGHT) {
    if (job == nullptr || !has_output) return true;
    const json::array& rounds = list(job->said, "rounds");
    const std::int64_t size = rounds.empty() ? 0 : whole(rounds.back(), "world_size");
    const std::int64_t last = size > 0 ? size - 1 : std::numeric_limits<std::int32_t>::max();
    rank = moved(rank, is_before ? -1 : 1, last);
  } else {
    typed.clear();
    return false;
  }
  return true;
}

bool View::press(int key, const State& state) {
  constexpr std::int64_t kAll = 1 << 30;
  const auto move = [&](std::int64_t steps, bool may_choose) {
    const Job* job = chosen(state);
    if (!may_choose || job == nullptr || has_help || !shows_list(state)) {
      scroll = moved(scroll, steps, most_scroll);
    } else {
      wanted = state.jobs[moved(job - state.jobs.data(), steps, state.jobs.size() - 1)].key();
      scroll = 0;
    }
  };
  if (has_help || !press_output_key(key, live_job(state))) {
    const std::int64_t by_page = std::max<std::int64_t>(page - 1, 1);
    if (key == 'q' || key == 'Q') return false;
    if (key == 'k' || key == KEY_UP) move(-1, true);
    if (key == 'j' || key == KEY_DOWN) move(1, true);
    if (key == 'g' || key == KEY_HOME) move(-kAll, true);
    if (key == 'G' || key == KEY_END) move(kAll, true);
    if (key == 'b' || key == KEY_PPAGE) move(-by_page, false);
    if (key == ' ' || key == KEY_NPAGE) move(by_page, false);
    if (key == 'n') order = static_cast<NodeOrder>((order + 1) % kOrders.size());
    const bool is_choice = is_enter(key) || key == '\t' || key == KEY_BTAB;
    const bool is_help = key == '?' || key == 'h';
    if (is_choice && !has_help) has_list = !shows_list(state);
    if (is_choice || is_help) scroll = 0;
    if (key == kEscape && !has_help) has_output = false;
    has_help = is_help ? !has_help : has_help && !is_choice && key != kEscape;
  }
  settle(state);
  return true;
}

std::string View::why_not_asked(const State& state) const {
  constexpr std::size_t kMostName = 4'000;  // longest job name in bytes that the daemon takes
  if (at(state.daemon, "watch_output").is_null()) {
    return concat("the rendezvous is of an older version (", text(state.daemon, "version"),
                  "), which doesn't tell what ranks print");
  }
  return output_of.size() > kMostName ? "the job's name is too long to ask for it" : "";
}

std::string View::wish(const State& state) const {
  const bool is_asked = shows_output(state) && live_job(state) && why_not_asked(state).empty();
  if (!is_asked) return kLookAway;
  return json::serialize(json::value{{"tail", {{"run_id", output_of}, {"rank", rank}}}});
}

Lines screen_picture(const Known& known, View& view, std::size_t real_columns,
                     std::size_t real_rows) {
  const std::size_t columns = std::max<std::size_t>(real_columns, 20);
  const std::size_t rows = std::max<std::size_t>(real_rows, 4);
  const State& state = known.state;
  const Job* job = view.chosen(state);
  const bool has_list = job != nullptr && view.shows_list(state);
  Lines lines = {header(known)}, body, output;
  std::size_t room = rows - 2;  // lines for the body
  if (view.has_help) {
    body = help_lines();
  } else {
    append(lines, troubles(known, columns, room / 3));
    if (has_list) {
      const std::size_t most = std::max<std::size_t>((rows - 1 - lines.size()) / 3, 2);
      append(lines, job_list(state, *job, columns, most));
    }
    lines.push_back(job != nullptr           ? job_title(state, *job, columns)
                    : known.shown_at.empty() ? concat(kDim, "nothing to show yet")
                                             : concat(kDim, "no jobs"));
    const std::size_t below = rows - 1 - std::min(lines.size(), rows - 1);
    const bool has_output = below > 0 && view.shows_output(state);
    room = has_output ? below / 2 : below;
    if (job != nullptr) {
      const auto past = known.history.find(job->run_id);
      body = job_lines(*job, past == known.history.end() ? JobHistory() : past->second, view.order,
                       columns, std::max<std::size_t>(room / 3, 2), room);
    }
    if (has_output) {
      output = output_lines(known, view, columns, below - std::min(body.size(), room));
    }
  }
  view.page = room;
  view.most_scroll = body.size() - std::min(body.size(), room);
  view.scroll = std::min(view.scroll, view.most_scroll);
  append(lines, std::span(body).subspan(view.scroll, std::min(body.size(), room)));
  append(lines, output);
  lines.resize(rows - 1);
  lines.push_back(footer(view, has_list, !output.empty(), columns));
  for (std::string& line : lines) line = cut(line, real_columns);
  lines.resize(std::min(real_rows, rows));
  return lines;
}

Lines paper_picture(const Known& known, View view, std::size_t columns) {
  constexpr std::size_t kNoEnd = 100'000;
  Lines lines = screen_picture(known, view, columns, kNoEnd);
  lines.pop_back();  // the line of keys
  while (lines.back().empty()) lines.pop_back();
  return lines;
}

}  // namespace ddprun::top
