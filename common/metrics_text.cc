// SPDX-License-Identifier: Apache-2.0
#include "common/metrics_text.h"

#include <dirent.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <charconv>
#include <cmath>
#include <cstdio>
#include <fstream>
#include <iterator>

#include "common/check.h"
#include "common/process_stat.h"
#include "common/text.h"

namespace ddprun::metrics {
namespace {

constexpr std::string_view kTotal = "_total", kOpenMetricsType = "application/openmetrics-text";

// Cuts the first part off; the text after the last separator is the last part.
std::string_view next_part(std::string_view& rest, char separator) {
  const std::size_t end = rest.find(separator);
  const std::string_view part = rest.substr(0, end);
  rest = end == std::string_view::npos ? std::string_view() : rest.substr(end + 1);
  return trimmed(part);
}

// Returns the number of "; q=0.5" in a media range. Without one it is 1; a wrong number gives 0.
double quality(std::string_view parameters) {
  while (!parameters.empty()) {
    const std::string_view parameter = next_part(parameters, ';');
    if (!parameter.starts_with("q=") && !parameter.starts_with("Q=")) continue;
    double value = 0;
    std::from_chars(parameter.data() + 2, parameter.data() + parameter.size(), value);
    return value;
  }
  return 1;
}

// A help has no quotes around it. There text 0.0.4 doesn't allow \", and OpenMetrics no unescaped
// quote.
void append_escaped(std::string& out, std::string_view text, bool escapes_quotes) {
  for (const char c : text) {
    if (c == '\\') {
      out += "\\\\";
    } else if (c == '\n') {
      out += "\\n";
    } else if (c == '"' && escapes_quotes) {
      out += "\\\"";
    } else {
      out += c;
    }
  }
}

template <typename Number>
void append_number(std::string& out, Number value) {
  std::array<char, 32> digits;
  const auto end = std::to_chars(digits.data(), digits.data() + digits.size(), value);
  out.append(digits.data(), end.ptr);
}

constexpr char kOwnDescriptors[] = "/proc/self/fd";
constexpr std::uint64_t kMostCounted = 16'384;

std::optional<std::uint64_t> count_open_fds() {
  struct stat directory {};
  if (::stat(kOwnDescriptors, &directory) == 0 && directory.st_size > 0) {
    return static_cast<std::uint64_t>(directory.st_size);
  }
  DIR* const open = ::opendir(kOwnDescriptors);
  if (open == nullptr) return std::nullopt;
  std::uint64_t num = 0;
  while (num <= kMostCounted && ::readdir(open) != nullptr) ++num;
  ::closedir(open);
  if (num > kMostCounted) return std::nullopt;
  return num < 3 ? 0 : num - 3;  // without ".", "..", and the one that reads them
}

std::uint64_t boot_time() {
  std::ifstream file("/proc/stat");
  return parse_boot_time(std::string(std::istreambuf_iterator<char>(file), {}));
}

}  // namespace

Format choose_format(std::string_view accept) {
  double open_metrics = 0, text = 0;
  while (!accept.empty()) {
    std::string_view range = next_part(accept, ',');
    const std::string_view type = next_part(range, ';');
    if (type == kOpenMetricsType) open_metrics = std::max(open_metrics, quality(range));
    if (type == "text/plain") text = std::max(text, quality(range));
  }
  return open_metrics > 0 && open_metrics >= text ? Format::kOpenMetrics : Format::kText;
}

const char* content_type(Format format) {
  return format == Format::kText ? "text/plain; version=0.0.4; charset=utf-8"
                                 : "application/openmetrics-text; version=1.0.0; charset=utf-8";
}

void Histogram::observe(double value) {
  const auto bound = std::lower_bound(bounds_.begin(), bounds_.end(), value);
  ++counts_[static_cast<std::size_t>(bound - bounds_.begin())];
  sum_ += value;
}

void TextWriter::family(std::string_view name, Type type, std::string_view help) {
  DDPRUN_CHECK(name.ends_with(kTotal) == (type == Type::kCounter));
  name_ = name;
  std::string_view family = name;
  // In OpenMetrics only the sample's name has the suffix.
  if (type == Type::kCounter && format_ == Format::kOpenMetrics) {
    family.remove_suffix(kTotal.size());
  }
  begin_family(family, type == Type::kCounter ? " counter\n" : " gauge\n", help);
}

void TextWriter::begin_family(std::string_view name, std::string_view type, std::string_view help) {
  text_.append("# HELP ").append(name).append(" ");
  append_escaped(text_, help, format_ == Format::kOpenMetrics);
  text_.append("\n# TYPE ").append(name).append(type);
}

void TextWriter::begin_sample(Labels labels) {
  text_ += name_;
  char before = '{';
  for (const auto& [name, value] : labels) {
    text_ += before;
    text_.append(name).append("=\"");
    append_escaped(text_, value, true);
    text_ += '"';
    before = ',';
  }
  if (labels.size() > 0) text_ += '}';
  text_ += ' ';
}

void TextWriter::sample(Labels labels, std::uint64_t value) {
  begin_sample(labels);
  append_number(text_, value);
  text_ += '\n';
}

void TextWriter::sample(Labels labels, double value) {
  begin_sample(labels);
  if (std::isnan(value)) {
    text_ += "NaN";
  } else if (std::isinf(value)) {
    text_ += value > 0 ? "+Inf" : "-Inf";
  } else {
    append_number(text_, value);
  }
  text_ += '\n';
}

void TextWriter::single(std::string_view name, Type type, std::string_view help,
                        std::uint64_t value) {
  family(name, type, help);
  sample({}, value);
}

void TextWriter::single(std::string_view name, Type type, std::string_view help, double value) {
  family(name, type, help);
  sample({}, value);
}

// `le` is a label with a number's text: OpenMetrics wants a floating-point number.
void TextWriter::histogram(std::string_view name, std::string_view help, const Histogram& values) {
  begin_family(name, " histogram\n", help);
  std::uint64_t num = 0;
  for (std::size_t i = 0; i < values.counts_.size(); ++i) {
    std::string bound = "+Inf";
    if (i < values.bounds_.size()) {
      bound.clear();
      append_number(bound, values.bounds_[i]);
      const bool is_whole = bound.find_first_of(".e") == std::string::npos;
      if (is_whole && format_ == Format::kOpenMetrics) bound += ".0";
    }
    num += values.counts_[i];
    text_.append(name).append("_bucket{le=\"").append(bound).append("\"} ");
    append_number(text_, num);
    text_ += '\n';
  }
  text_.append(name).append("_sum ");
  append_number(text_, values.sum_);
  text_.append("\n").append(name).append("_count ");
  append_number(text_, num);
  text_ += '\n';
}

std::string TextWriter::finish() {
  if (format_ == Format::kOpenMetrics) text_ += "# EOF\n";
  return std::move(text_);
}

std::uint64_t parse_boot_time(std::string_view proc_stat) {
  constexpr std::string_view kLine = "\nbtime ";
  const std::size_t at = proc_stat.find(kLine);
  if (at == std::string_view::npos) return 0;
  std::uint64_t seconds = 0;
  std::from_chars(proc_stat.data() + at + kLine.size(), proc_stat.data() + proc_stat.size(),
                  seconds);
  return seconds;
}

ProcessUse own_use() {
  ProcessUse use;
  rusage spent{};
  if (::getrusage(RUSAGE_SELF, &spent) == 0) {
    const auto seconds = [](const timeval& time) {
      return static_cast<double>(time.tv_sec) + static_cast<double>(time.tv_usec) / 1e6;
    };
    use.cpu_seconds = seconds(spent.ru_utime) + seconds(spent.ru_stime);
  }
  std::ifstream pages("/proc/self/statm");
  std::uint64_t size = 0, resident = 0;
  if (pages >> size >> resident) {
    const auto page_bytes = static_cast<std::uint64_t>(::sysconf(_SC_PAGESIZE));
    use.virtual_bytes = size * page_bytes;
    use.resident_bytes = resident * page_bytes;
  }
  use.num_open_fds = count_open_fds();
  rlimit limit{};
  if (::getrlimit(RLIMIT_NOFILE, &limit) == 0) use.max_fds = limit.rlim_cur;
  ProcessStat stat;
  static const std::uint64_t kBoot = boot_time();  // the file is long on large machines
  if (kBoot > 0 && read_process_stat(::getpid(), &stat)) {
    use.start_timestamp_seconds =
        static_cast<double>(kBoot) +
        static_cast<double>(stat.start_ticks) / static_cast<double>(::sysconf(_SC_CLK_TCK));
  }
  return use;
}

void write(TextWriter& out, const ProcessUse& use) {
  out.single("process_cpu_seconds_total", Type::kCounter, "User and system CPU time spent.",
             use.cpu_seconds);
  out.single("process_virtual_memory_bytes", Type::kGauge, "Size of the address space.",
             use.virtual_bytes);
  out.single("process_resident_memory_bytes", Type::kGauge, "Memory that is in RAM.",
             use.resident_bytes);
  if (use.num_open_fds) {
    out.single("process_open_fds", Type::kGauge, "Open file descriptors.", *use.num_open_fds);
  }
  out.single("process_max_fds", Type::kGauge, "How many file descriptors may be open.",
             use.max_fds);
  out.single("process_start_time_seconds", Type::kGauge, "When it began, since 1970.",
             use.start_timestamp_seconds);
}

}  // namespace ddprun::metrics
