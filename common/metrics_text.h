// SPDX-License-Identifier: Apache-2.0
// Metrics as Prometheus reads them: its text format 0.0.4, and OpenMetrics 1.0. Pure.
#pragma once

#include <cstdint>
#include <initializer_list>
#include <string>
#include <string_view>
#include <utility>

namespace ddprun::metrics {

enum class Format { kText, kOpenMetrics };

// Which of the two the HTTP header Accept prefers; "" (none was sent), or neither: kText.
Format choose_format(std::string_view accept);
const char* content_type(Format format);

enum class Type { kCounter, kGauge };

// Families one after the other, each with its samples behind it. Names are those of the guide:
// [a-z_], a counter's ends in _total, a unit is said in the name (docs/metrics.md).
class TextWriter {
 public:
  using Labels = std::initializer_list<std::pair<std::string_view, std::string_view>>;

  explicit TextWriter(Format format) : format_(format) {}

  // Each name once. A counter whose name does not end in _total is a bug, and aborts.
  void family(std::string_view name, Type type, std::string_view help);
  // Of the last family. Label values may hold any UTF-8.
  void sample(Labels labels, std::uint64_t value);
  void sample(Labels labels, double value);
  // A family of one sample without labels.
  void single(std::string_view name, Type type, std::string_view help, std::uint64_t value);
  void single(std::string_view name, Type type, std::string_view help, double value);

  // The whole text; the last call.
  std::string finish();

 private:
  void begin_sample(Labels labels);

  const Format format_;
  std::string name_;  // of the last family
  std::string text_;
};

}  // namespace ddprun::metrics
