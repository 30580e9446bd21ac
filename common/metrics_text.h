// SPDX-License-Identifier: Apache-2.0
// Metrics in Prometheus' text format 0.0.4 and in OpenMetrics 1.0. Pure, except own_use().
#pragma once

#include <cstdint>
#include <initializer_list>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace ddprun::metrics {

enum class Format { kText, kOpenMetrics };

// Returns which of the two the HTTP header Accept prefers; "" (none was sent), or neither: kText.
Format choose_format(std::string_view accept);
const char* content_type(Format format);

enum class Type { kCounter, kGauge };

// Counts values by their size.
class Histogram {
 public:
  // `bounds` ascend. Values above the last one are counted, too.
  explicit Histogram(std::vector<double> bounds)
      : bounds_(std::move(bounds)), counts_(bounds_.size() + 1) {}

  void observe(double value);

 private:
  friend class TextWriter;
  std::vector<double> bounds_;
  std::vector<std::uint64_t> counts_;  // of values above the bound before, up to its own
  double sum_ = 0;
};

// Writes families one after the other, each followed by its samples. Names follow Prometheus'
// guide: [a-z_], a counter's ends in _total, the name has the unit (docs/metrics.md).
class TextWriter {
 public:
  using Labels = std::initializer_list<std::pair<std::string_view, std::string_view>>;

  explicit TextWriter(Format format) : format_(format) {}

  // Begins a family; each name occurs once. A counter whose name does not end in _total is a bug,
  // and aborts.
  void family(std::string_view name, Type type, std::string_view help);
  // Adds to the last family. Label values may hold any UTF-8.
  void sample(Labels labels, std::uint64_t value);
  void sample(Labels labels, double value);
  // Writes a family of one sample without labels.
  void single(std::string_view name, Type type, std::string_view help, std::uint64_t value);
  void single(std::string_view name, Type type, std::string_view help, double value);
  // Writes a family with a histogram. Its name has the unit, too.
  void histogram(std::string_view name, std::string_view help, const Histogram& values);

  // Returns the whole text; the last call.
  std::string finish();

 private:
  void begin_family(std::string_view name, std::string_view type, std::string_view help);
  void begin_sample(Labels labels);

  const Format format_;
  std::string name_;  // of the last family
  std::string text_;
};

// This process' use of resources. All exporters have these names for it (process_…). 0 or nullopt:
// the kernel does not say it.
struct ProcessUse {
  double cpu_seconds = 0;
  std::uint64_t virtual_bytes = 0, resident_bytes = 0;
  std::optional<std::uint64_t> num_open_fds;  // nullopt: too many to count one by one
  std::uint64_t max_fds = 0;
  double start_timestamp_seconds = 0;  // since 1970
};

// Reads /proc/self; never waits. Up to Linux 6.2 it counts descriptors one by one, at most 16,384.
ProcessUse own_use();

void write(TextWriter& out, const ProcessUse& use);

// Returns when the machine began, in seconds since 1970, from /proc/stat; 0: it isn't there. Pure.
std::uint64_t parse_boot_time(std::string_view proc_stat);

}  // namespace ddprun::metrics
