// SPDX-License-Identifier: Apache-2.0
#include "examples/train/summary.h"

#include <boost/json.hpp>

#include <cerrno>
#include <cmath>
#include <fstream>

#include "common/error.h"

namespace ddprun::train {

namespace {

// JSON has no word for what a training that went astray comes to.
boost::json::value number(double value) {
  return std::isfinite(value) ? boost::json::value(value) : boost::json::value(nullptr);
}

}  // namespace

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
                                   {"median_step_ms", summary.median_step_ms},
                                   {"wall_seconds", summary.wall_seconds},
                                   {"epochs", std::move(epochs)}};
  return boost::json::serialize(object) + "\n";
}

void check_writable(const std::string& path) {
  if (!std::ofstream(path, std::ios::app)) {
    throw Error(ErrorCode::kInvalidArgument, "can't write " + path + ": " + errno_text(errno));
  }
}

void write_text_file(const std::string& path, const std::string& text) {
  std::ofstream file(path);
  file << text;
  file.close();
  if (!file) throw_system_error("can't write " + path, errno);
}

}  // namespace ddprun::train
