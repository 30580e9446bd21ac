// SPDX-License-Identifier: Apache-2.0
#include "examples/train/progress.h"

#include <sys/ioctl.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <cstdlib>

#include "common/env_names.h"

namespace ddprun::train {
namespace {

constexpr std::chrono::milliseconds kRedrawInterval{50};
constexpr int kMinBar = 10, kMaxBar = 40;

template <typename... Args>
std::string format(const char* pattern, Args... args) {
  char text[256];
  std::snprintf(text, sizeof text, pattern, args...);
  return text;
}

std::string bar(int width, int done, int total) {
  const int filled = total > 0 ? static_cast<int>(static_cast<long long>(width) * done / total) : 0;
  std::string text(static_cast<std::size_t>(filled), '=');
  if (filled < width) text += '>';
  text.resize(static_cast<std::size_t>(width), ' ');
  return "[" + text + "] ";
}

}  // namespace

std::string progress_line(const ProgressState& state, int columns) {
  const std::string before = format("epoch %d/%d ", state.epoch, state.num_epochs);
  const std::string after = format(
      "%*d/%d  loss %.3f  %.0f samples/s", static_cast<int>(std::to_string(state.num_steps).size()),
      state.step, state.num_steps, state.loss, state.samples_per_second);
  const int width = std::max(columns - 1, 1);
  const int room = width - static_cast<int>(before.size() + after.size()) - 3;
  std::string line = before;
  if (room >= kMinBar) line += bar(std::min(room, kMaxBar), state.step, state.num_steps);
  line += after;
  line.resize(static_cast<std::size_t>(width), ' ');
  return line;
}

int terminal_columns() {
  constexpr int kUsual = 80;
  if (const char* columns = std::getenv(env::kTerminalColumns)) {
    const int number = std::atoi(columns);
    return number > 0 ? number : kUsual;
  }
  if (!::isatty(STDOUT_FILENO)) return 0;
  winsize size{};
  return ::ioctl(STDOUT_FILENO, TIOCGWINSZ, &size) == 0 && size.ws_col > 0 ? size.ws_col : kUsual;
}

bool Progress::due(const ProgressState& state) const {
  if (silent_ || columns_ == 0) return false;
  return state.step == state.num_steps || !last_drawn_ ||
         Clock::now() - *last_drawn_ >= kRedrawInterval;
}

void Progress::update(const ProgressState& state) {
  if (!due(state)) return;
  std::fprintf(out_, "\r%s", progress_line(state, columns_).c_str());
  std::fflush(out_);
  last_drawn_ = Clock::now();
  bar_shown_ = true;
}

void Progress::line(const std::string& text) {
  if (silent_) return;
  if (bar_shown_) std::fprintf(out_, "\r%*s\r", columns_ - 1, "");
  std::fprintf(out_, "%s\n", text.c_str());
  std::fflush(out_);
  bar_shown_ = false;
}

}  // namespace ddprun::train
