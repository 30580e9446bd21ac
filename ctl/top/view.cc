// SPDX-License-Identifier: Apache-2.0
#include "ctl/top/view.h"

#include <algorithm>

#include "common/log.h"
#include "ctl/top/looking.h"

namespace ddprun::top {
namespace {

void choose(View& view, const State& state, std::ptrdiff_t steps) {
  const auto now = chosen(state, view);
  if (!now) return;
  const auto last = static_cast<std::ptrdiff_t>(num_jobs(state)) - 1;
  const auto next = std::clamp<std::ptrdiff_t>(static_cast<std::ptrdiff_t>(*now) + steps, 0, last);
  view.wanted = key_of(state, static_cast<std::size_t>(next));
  view.scroll = 0;
}

void scroll(View& view, const Extent& extent, std::ptrdiff_t steps) {
  const auto most = static_cast<std::ptrdiff_t>(extent.most_scroll);
  const auto now = std::min(static_cast<std::ptrdiff_t>(view.scroll), most);
  view.scroll = static_cast<std::size_t>(std::clamp<std::ptrdiff_t>(now + steps, 0, most));
}

}  // namespace

const char* order_name(NodeOrder order) {
  switch (order) {
    case NodeOrder::kRank:
      return "rank";
    case NodeOrder::kCpu:
      return "CPU";
    case NodeOrder::kGpu:
      return "GPU, idle first";
    case NodeOrder::kNetwork:
      return "network";
    case NodeOrder::kStepTime:
      return "step time";
  }
  return "";
}

Focus View::focus_on(const State& state) const {
  return focus.value_or(num_jobs(state) > 1 ? Focus::kList : Focus::kJob);
}

std::size_t num_jobs(const State& state) { return state.jobs.size() + state.finished.size(); }

std::string key_of(const State& state, std::size_t index) {
  if (index < state.jobs.size()) return state.jobs[index].run_id;
  const FinishedJob& job = state.finished.at(index - state.jobs.size());
  return concat(job.run_id, '\n', job.ended);
}

std::optional<std::size_t> chosen(const State& state, const View& view) {
  const std::size_t num = num_jobs(state);
  if (num == 0) return std::nullopt;
  if (view.wanted.empty()) return 0;
  for (std::size_t i = 0; i < num; ++i) {
    if (key_of(state, i) == view.wanted) return i;
  }
  // One that was live, and is over now, or is back.
  const std::string run_id = view.wanted.substr(0, view.wanted.find('\n'));
  for (std::size_t i = 0; i < num; ++i) {
    if (key_of(state, i).starts_with(run_id + '\n')) return i;
  }
  return 0;
}

bool press(View& view, Key key, const State& state, const Extent& extent) {
  const auto page = static_cast<std::ptrdiff_t>(std::max<std::size_t>(extent.page, 2)) - 1;
  constexpr std::ptrdiff_t kAll = 1 << 30;
  const bool is_list = view.focus_on(state) == Focus::kList;
  const auto move = [&](std::ptrdiff_t steps) {
    is_list && !view.has_help ? choose(view, state, steps) : scroll(view, extent, steps);
  };
  if (!view.has_help && press_output_key(view, key, state)) return true;
  switch (key) {
    case Key::kQuit:
      return false;
    case Key::kUp:
      move(-1);
      break;
    case Key::kDown:
      move(1);
      break;
    case Key::kFirst:
      move(-kAll);
      break;
    case Key::kLast:
      move(kAll);
      break;
    case Key::kPageUp:
      scroll(view, extent, -page);
      break;
    case Key::kPageDown:
      scroll(view, extent, page);
      break;
    case Key::kEnter:
    case Key::kTab:
      if (!view.has_help) view.focus = is_list ? Focus::kJob : Focus::kList;
      view.has_help = false;
      view.scroll = 0;
      break;
    case Key::kSort: {
      constexpr int kNum = 5;
      view.order = static_cast<NodeOrder>((static_cast<int>(view.order) + 1) % kNum);
      break;
    }
    case Key::kHelp:
      view.has_help = !view.has_help;
      view.scroll = 0;
      break;
    case Key::kEscape:
      view.has_output = view.has_output && view.has_help;
      view.has_help = false;
      break;
    default:
      break;  // the terminal's affair, or of output (looking.h)
  }
  settle(view, state);  // it may be another job
  return true;
}

}  // namespace ddprun::top
