// SPDX-License-Identifier: Apache-2.0
#include "examples/train/summary.h"

#include <boost/json.hpp>

#include <algorithm>
#include <cerrno>
#include <cmath>
#include <cstdio>
#include <filesystem>
#include <fstream>
#include <system_error>

#include "common/error.h"

namespace ddprun::train {

namespace {

// JSON has no word for what a training that went astray comes to.
boost::json::value number(double value) {
  return std::isfinite(value) ? boost::json::value(value) : boost::json::value(nullptr);
}

}  // namespace

std::string describe(const EpochResult& result, int num_epochs) {
  char line[160];
  std::snprintf(line, sizeof line,
                "epoch %d/%d  loss %.4f  test loss %.4f  test accuracy %.4f  %.0f samples/s",
                result.epoch, num_epochs, result.train_loss, result.test_loss, result.test_accuracy,
                result.samples_per_second);
  return line;
}

std::string traffic_text(const GradientTraffic& traffic, std::uint64_t num_steps) {
  const auto megabytes = [&](std::uint64_t bytes) {
    return static_cast<double>(bytes) / static_cast<double>(std::max<std::uint64_t>(1, num_steps)) /
           1e6;
  };
  const double whole = static_cast<double>(std::max<std::uint64_t>(1, traffic.uncompressed_bytes));
  char text[160];
  std::snprintf(text, sizeof text,
                "%.3f MB of gradients sent per rank and step, %.3f MB uncompressed: %.2f %%",
                megabytes(traffic.sent_bytes), megabytes(traffic.uncompressed_bytes),
                static_cast<double>(traffic.sent_bytes) * 100 / whole);
  return text;
}

std::string describe(const SyncReport& report, bool is_async) {
  char text[200];
  const double megabytes = static_cast<double>(report.sent_bytes) / 1e6;
  if (!is_async) {
    std::snprintf(text, sizeof text, "averaged %llu times, %.1f MB sent per rank",
                  static_cast<unsigned long long>(report.num_averagings), megabytes);
    return text;
  }
  std::snprintf(text, sizeof text,
                "%.1f steps/s, ahead of the slowest rank by at most %llu steps, %.2f on average; "
                "%.1f s waited, %.1f MB sent per rank",
                report.steps_per_second, static_cast<unsigned long long>(report.max_lead),
                report.mean_lead, report.waited_seconds, megabytes);
  return text;
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
  return boost::json::serialize(object) + "\n";
}

std::string describe_loading(const Summary& summary, int num_threads) {
  constexpr double kWorthALine = 0.05;
  if (summary.loading_seconds < kWorthALine * summary.wall_seconds) return "";
  char line[120];
  std::snprintf(line, sizeof line,
                "train: waited %.1f s of %.1f s for batches (--loader-threads %d)",
                summary.loading_seconds, summary.wall_seconds, num_threads);
  return line;
}

void check_writable(const std::string& path) {
  std::error_code ignored;
  const bool was_there = std::filesystem::exists(std::filesystem::symlink_status(path, ignored));
  if (!std::ofstream(path, std::ios::app)) {
    throw Error(ErrorCode::kInvalidArgument, "can't write " + path + ": " + errno_text(errno));
  }
  if (!was_there) std::filesystem::remove(path, ignored);
}

void write_text_file(const std::string& path, const std::string& text) {
  std::ofstream file(path);
  file << text;
  file.close();
  if (file) return;
  const int why = errno;
  std::error_code ignored;
  if (std::filesystem::is_regular_file(path, ignored)) std::filesystem::remove(path, ignored);
  throw_system_error("can't write " + path, why);
}

}  // namespace ddprun::train
