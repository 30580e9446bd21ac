// SPDX-License-Identifier: Apache-2.0
#include "apps/train/summary.h"

#include <fcntl.h>
#include <sys/ioctl.h>
#include <unistd.h>

#include <algorithm>
#include <boost/json.hpp>
#include <cerrno>
#include <chrono>
#include <cmath>
#include <cstdlib>
#include <filesystem>
#include <system_error>

#include "common/env_names.h"
#include "common/error.h"
#include "common/fd_text.h"
#include "common/json.h"
#include "common/regular_file.h"
#include "common/text.h"
#include "common/unique_fd.h"

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

// JSON has no word for a number that isn't finite, as a diverged training has.
boost::json::value number(double value) {
  return std::isfinite(value) ? boost::json::value(value) : boost::json::value(nullptr);
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

std::string describe(const EpochResult& result, int num_epochs) {
  return format("epoch %d/%d  loss %.4f  test loss %.4f  test accuracy %.4f  %.0f samples/s",
                result.epoch, num_epochs, result.train_loss, result.test_loss, result.test_accuracy,
                result.samples_per_second);
}

std::string traffic_text(const GradientTraffic& traffic, std::uint64_t num_steps) {
  const auto megabytes = [&](std::uint64_t bytes) {
    return static_cast<double>(bytes) / static_cast<double>(std::max<std::uint64_t>(1, num_steps)) /
           1e6;
  };
  const double whole = static_cast<double>(std::max<std::uint64_t>(1, traffic.uncompressed_bytes));
  return format("%.3f MB of gradients sent per rank and step, %.3f MB uncompressed: %.2f %%",
                megabytes(traffic.sent_bytes), megabytes(traffic.uncompressed_bytes),
                static_cast<double>(traffic.sent_bytes) * 100 / whole);
}

std::string describe(const SyncReport& report, bool is_async) {
  const double megabytes = static_cast<double>(report.sent_bytes) / 1e6;
  if (!is_async) {
    return format("averaged %llu times, %.1f MB sent per rank",
                  static_cast<unsigned long long>(report.num_averagings), megabytes);
  }
  return format(
      "%.1f steps/s, ahead of the slowest rank by at most %llu steps, %.2f on average; "
      "%.1f s waited, %.1f MB sent per rank",
      report.steps_per_second, static_cast<unsigned long long>(report.max_lead), report.mean_lead,
      report.waited_seconds, megabytes);
}

std::string to_json(const Summary& summary) {
  boost::json::array epochs;
  for (const EpochResult& result : summary.epochs) {
    epochs.push_back({{"epoch", result.epoch},
                      {"train_loss", number(result.train_loss)},
                      {"test_loss", number(result.test_loss)},
                      {"test_accuracy", result.test_accuracy},
                      {"seconds", result.seconds},
                      {"samples_per_second", result.samples_per_second}});
  }
  const double accuracy = summary.epochs.empty() ? 0 : summary.epochs.back().test_accuracy;
  const boost::json::object object{{"world_size", summary.world_size},
                                   {"backend", summary.backend},
                                   {"device", summary.device},
                                   {"data", summary.data_dir},
                                   {"test_accuracy", accuracy},
                                   {"first_step", summary.first_step},
                                   {"last_step", summary.last_step},
                                   {"compress", summary.compress},
                                   {"steps", boost::json::parse(to_json(summary.steps))},
                                   {"gradient_bytes", summary.traffic.uncompressed_bytes},
                                   {"gradient_bytes_sent", summary.traffic.sent_bytes},
                                   {"mode", summary.mode},
                                   {"averagings", summary.sync.num_averagings},
                                   {"averaging_bytes_sent", summary.sync.sent_bytes},
                                   {"staleness_max", summary.sync.max_lead},
                                   {"staleness_mean", summary.sync.mean_lead},
                                   {"exchange_seconds", summary.sync.waited_seconds},
                                   {"steps_per_second", summary.sync.steps_per_second},
                                   {"loading_seconds", summary.loading_seconds},
                                   {"wall_seconds", summary.wall_seconds},
                                   {"epochs", std::move(epochs)}};
  return written_json(object) + "\n";
}

std::string describe_loading(const Summary& summary, int num_threads) {
  constexpr double kWorthALine = 0.05;
  if (summary.loading_seconds < kWorthALine * summary.wall_seconds) return "";
  return format("train: waited %.1f s of %.1f s for batches (--loader-threads %d)",
                summary.loading_seconds, summary.wall_seconds, num_threads);
}

void check_writable(const std::string& path) {
  std::error_code ignored;
  const bool was_there = std::filesystem::exists(std::filesystem::symlink_status(path, ignored));
  if (!open_to_write(path, O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0666)) {
    const std::string why = opening_trouble(path, errno);
    throw Error(ErrorCode::kInvalidArgument, concat("can't write ", path, ": ", why));
  }
  if (!was_there) std::filesystem::remove(path, ignored);
}

void write_text_file(const std::string& path, const std::string& text) {
  UniqueFd file = open_to_write(path, O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0666);
  if (!file) {
    const std::string trouble = opening_trouble(path, errno);
    throw Error(ErrorCode::kSystem, concat("can't write ", path, ": ", trouble));
  }
  int why = write_text(file.get(), text);
  if (::close(file.release()) != 0 && why == 0) why = errno;
  if (why == 0) return;
  std::error_code ignored;
  if (std::filesystem::is_regular_file(path, ignored)) std::filesystem::remove(path, ignored);
  throw_system_error("can't write " + path, why);
}

}  // namespace ddprun::train
