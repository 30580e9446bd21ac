// SPDX-License-Identifier: Apache-2.0
#include "ctl/top/view.h"

#include <curses.h>

#include <algorithm>
#include <array>
#include <boost/json/object.hpp>
#include <boost/json/serialize.hpp>
#include <limits>

#include "common/log.h"

namespace ddprun::top {
namespace {

constexpr int kEscape = 27, kDelete = 127, kBackspace = '\b';
constexpr std::array kOrders = {"rank", "CPU", "GPU, idle first", "network", "step time"};

std::size_t moved(std::size_t from, std::int64_t steps, std::size_t last) {
  const auto most = static_cast<std::int64_t>(last);
  const auto now = std::min(static_cast<std::int64_t>(from), most);
  return static_cast<std::size_t>(std::clamp<std::int64_t>(now + steps, 0, most));
}

bool is_enter(int key) { return key == '\r' || key == '\n' || key == KEY_ENTER; }

}  // namespace

const char* order_name(NodeOrder order) { return kOrders.at(static_cast<std::size_t>(order)); }

bool View::shows_list(const State& state) const { return has_list.value_or(state.jobs.size() > 1); }

std::optional<std::size_t> View::chosen(const State& state) const {
  const auto find = [&](const auto& is_it) -> std::optional<std::size_t> {
    const auto found = std::find_if(state.jobs.begin(), state.jobs.end(), is_it);
    if (found == state.jobs.end()) return std::nullopt;
    return static_cast<std::size_t>(found - state.jobs.begin());
  };
  if (const auto exact = find([&](const Job& job) { return job.key() == wanted; })) return exact;
  // One that was live may be over now, or be back.
  const std::string run_id = wanted.substr(0, wanted.find('\n'));
  if (const auto same = find([&](const Job& job) { return job.run_id == run_id; })) return same;
  return state.jobs.empty() ? std::nullopt : std::optional<std::size_t>(0);
}

const Job* View::live_job(const State& state) const {
  const auto at = chosen(state);
  return at && *at < state.num_live ? &state.jobs[*at] : nullptr;
}

bool View::shows_output(const State& state) const {
  const auto at = chosen(state);
  return has_output && at && state.jobs[*at].run_id == output_of;
}

void View::settle(const State& state) {
  const Job* job = live_job(state);
  if (!has_output || job == nullptr || job->run_id == output_of) return;
  output_of = job->run_id;
  rank = rank_of_interest(*job);
}

bool View::press_output_key(int key, const State& state) {
  constexpr std::size_t kMostDigits = 9;
  const Job* job = live_job(state);
  if (key >= '0' && key <= '9') {
    if (typed.size() < kMostDigits) typed += static_cast<char>(key);
  } else if (key == KEY_BACKSPACE || key == kBackspace || key == kDelete) {
    if (!typed.empty()) typed.pop_back();
  } else if (!typed.empty() && key == kEscape) {
    typed.clear();
  } else if (!typed.empty() && is_enter(key)) {
    if (job != nullptr) {
      has_output = true;
      output_of = job->run_id;
      rank = std::stoll(typed);
    }
    typed.clear();
  } else if (key == 'l') {
    has_output = !has_output;
    output_of.clear();
  } else if (key == '[' || key == ']' || key == KEY_LEFT || key == KEY_RIGHT) {
    if (job == nullptr || !has_output) return true;
    const json::array& rounds = list(job->said, "rounds");
    const std::int64_t size = rounds.empty() ? 0 : whole(rounds.back(), "world_size");
    const std::int64_t last = size > 0 ? size - 1 : std::numeric_limits<std::int32_t>::max();
    const std::int64_t by = key == '[' || key == KEY_LEFT ? -1 : 1;
    rank = std::clamp<std::int64_t>(rank + by, 0, last);
  } else {
    typed.clear();
    return false;
  }
  return true;
}

bool View::press(int key, const State& state, const Extent& extent) {
  constexpr std::int64_t kAll = 1 << 30;
  const auto page = static_cast<std::int64_t>(std::max<std::size_t>(extent.page, 2)) - 1;
  const auto move = [&](std::int64_t steps, bool may_choose) {
    const auto now = chosen(state);
    if (!may_choose || !now || has_help || !shows_list(state)) {
      scroll = moved(scroll, steps, extent.most_scroll);
    } else {
      wanted = state.jobs[moved(*now, steps, state.jobs.size() - 1)].key();
      scroll = 0;
    }
  };
  if (!has_help && press_output_key(key, state)) {
    settle(state);
    return true;
  }
  if (key == 'q' || key == 'Q') return false;
  if (key == 'k' || key == KEY_UP) move(-1, true);
  if (key == 'j' || key == KEY_DOWN) move(1, true);
  if (key == 'g' || key == KEY_HOME) move(-kAll, true);
  if (key == 'G' || key == KEY_END) move(kAll, true);
  if (key == 'b' || key == KEY_PPAGE) move(-page, false);
  if (key == ' ' || key == KEY_NPAGE) move(page, false);
  if (is_enter(key) || key == '\t' || key == KEY_BTAB) {
    if (!has_help) has_list = !shows_list(state);
    has_help = false;
    scroll = 0;
  }
  if (key == 'n') {
    order = static_cast<NodeOrder>((static_cast<std::size_t>(order) + 1) % kOrders.size());
  }
  if (key == '?' || key == 'h') {
    has_help = !has_help;
    scroll = 0;
  }
  if (key == kEscape) {
    has_output = has_output && has_help;
    has_help = false;
  }
  settle(state);
  return true;
}

std::string View::why_not_asked(const State& state) const {
  constexpr std::size_t kMostName = 4'000;  // bytes of a job's name that the daemon takes
  if (member(state.daemon, "watch_output").is_null()) {
    return concat("the rendezvous is of an older version (", text(state.daemon, "version"),
                  "), which doesn't tell what ranks print");
  }
  return output_of.size() > kMostName ? "the job's name is too long to ask for it" : "";
}

std::string View::wish(const State& state) const {
  if (!shows_output(state) || live_job(state) == nullptr || !why_not_asked(state).empty()) {
    return kLookAway;
  }
  return json::serialize(
      json::object{{"tail", json::object{{"run_id", output_of}, {"rank", rank}}}});
}

}  // namespace ddprun::top
