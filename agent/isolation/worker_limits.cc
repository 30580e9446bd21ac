// SPDX-License-Identifier: Apache-2.0
#include "agent/isolation/worker_limits.h"

#include <algorithm>
#include <array>
#include <charconv>
#include <cstdio>

#include "agent/output/output_specs.h"
#include "common/log.h"

namespace ddprun::agent {
namespace {

constexpr char kNone[] = "none";
constexpr std::uint64_t kLeastMemory = std::uint64_t{1} << 20;  // less holds no program at all
constexpr std::uint64_t kMostPids = 4'194'304;                  // the kernel's own (PIDS_MAX)
constexpr std::uint64_t kMostOperations = 4'294'967'294;        // likewise: one more means "max"

std::optional<std::uint64_t> whole_number(std::string_view text) {
  std::uint64_t value = 0;
  const char* end = text.data() + text.size();
  const auto [stop, error] = std::from_chars(text.data(), end, value);
  return error == std::errc() && stop == end ? std::optional(value) : std::nullopt;
}

// What comes before one of `ends`, which is taken off, too.
std::string_view take_until(std::string_view& text, std::string_view ends) {
  const std::size_t at = text.find_first_of(ends);
  const std::string_view part = text.substr(0, at);
  text.remove_prefix(at == std::string_view::npos ? text.size() : at + 1);
  return part;
}

struct IoKey {
  const char* name;
  std::optional<std::uint64_t> IoLimit::*field;
  bool is_size;
};
constexpr std::array<IoKey, 4> kIoKeys = {{{"rbps", &IoLimit::read_bytes, true},
                                           {"wbps", &IoLimit::write_bytes, true},
                                           {"riops", &IoLimit::reads, false},
                                           {"wiops", &IoLimit::writes, false}}};

std::string parse_io_value(const IoKey& key, std::string_view text, IoLimit& limit) {
  std::uint64_t value = 0;
  if (key.is_size) {
    if (const std::string why = parse_size(text, value); !why.empty()) {
      return concat(key.name, "=", text, " ", why);
    }
  } else {
    value = whole_number(text).value_or(0);
    if (value > kMostOperations) value = 0;
  }
  if (value == 0) {
    return concat(key.name, "=", text, " wants a number, more than 0",
                  key.is_size ? "" : " and below 4294967295");
  }
  limit.*key.field = value;
  return {};
}

std::string parse_io_limit(std::string_view text, IoLimit& limit) {
  constexpr char kForm[] = "wants DEVICE:rbps=SIZE,wbps=SIZE,riops=N,wiops=N, or none";
  // A device may have a colon of its own, a value has none.
  const std::size_t colon = text.rfind(':');
  if (colon == std::string_view::npos || colon == 0) return kForm;
  limit.device = text.substr(0, colon);
  std::string_view rest = text.substr(colon + 1);
  if (rest.find('=') == std::string_view::npos) return kForm;
  while (!rest.empty()) {
    std::string_view value = take_until(rest, ",");
    const std::string_view name = take_until(value, "=");
    const auto key = std::find_if(kIoKeys.begin(), kIoKeys.end(),
                                  [&](const IoKey& each) { return name == each.name; });
    if (key == kIoKeys.end()) {
      return concat("\"", name, "\" is none of rbps, wbps, riops and wiops");
    }
    if (limit.*key->field) return concat(name, " is given twice for ", limit.device);
    if (std::string why = parse_io_value(*key, value, limit); !why.empty()) return why;
  }
  return {};
}

}  // namespace

std::string parse_memory_limit(std::string_view text, WorkerLimits& limits) {
  limits.memory_bytes.reset();
  if (text == kNone) return {};
  std::uint64_t bytes = 0;
  if (!parse_size(text, bytes).empty() || bytes < kLeastMemory) {
    return "wants a size of at least 1M, as in 64G, 1T or a number of bytes, or none";
  }
  limits.memory_bytes = bytes;
  return {};
}

std::string parse_pids_limit(std::string_view text, WorkerLimits& limits) {
  limits.pids.reset();
  if (text == kNone) return {};
  const auto number = whole_number(text);
  if (!number || *number == 0 || *number > kMostPids) {
    return concat("wants a number from 1 to ", kMostPids, ", or none");
  }
  limits.pids = *number;
  return {};
}

std::string parse_cpuset(std::string_view text, WorkerLimits& limits) {
  limits.cpuset_source = CpusetSource::kNone;
  limits.cpuset = {};
  if (text == kNone) return {};
  if (text == "binding") {
    limits.cpuset_source = CpusetSource::kBinding;
    return {};
  }
  const auto cpus = parse_cpu_list(text);
  if (!cpus || cpus->empty()) return "wants a list of CPUs, as in 0-7,16, or binding, or none";
  limits.cpuset_source = CpusetSource::kList;
  limits.cpuset = *cpus;
  return {};
}

std::string parse_io_limits(std::string_view text, WorkerLimits& limits) {
  limits.io.clear();
  if (text == kNone) return {};
  while (!text.empty()) {
    const std::string_view part = take_until(text, ";");
    if (part.empty()) continue;
    IoLimit limit;
    if (std::string why = parse_io_limit(part, limit); !why.empty()) return why;
    const bool is_known = std::any_of(limits.io.begin(), limits.io.end(), [&](const auto& each) {
      return each.device == limit.device;
    });
    if (is_known) return limit.device + " is given twice";
    limits.io.push_back(std::move(limit));
  }
  return limits.io.empty() ? "wants DEVICE:rbps=SIZE,wbps=SIZE,riops=N,wiops=N, or none" : "";
}

std::string parse_limits_mode(std::string_view text, WorkerLimits& limits) {
  if (text != "required" && text != "best-effort") return "must be required or best-effort";
  limits.required = text == "required";
  return {};
}

std::vector<ShownLimit> shown_limits(const WorkerLimits& limits) {
  std::vector<ShownLimit> shown;
  if (limits.memory_bytes) shown.push_back({"worker-memory", size_text(*limits.memory_bytes)});
  if (limits.pids) shown.push_back({"worker-pids", std::to_string(*limits.pids)});
  if (limits.cpuset_source == CpusetSource::kList) {
    shown.push_back({"worker-cpuset", to_text(limits.cpuset)});
  } else if (limits.cpuset_source == CpusetSource::kBinding) {
    shown.push_back({"worker-cpuset", "binding"});
  }
  for (const IoLimit& limit : limits.io) shown.push_back({"worker-io", to_text(limit)});
  return shown;
}

std::string size_text(std::uint64_t bytes) {
  constexpr std::array kUnits = {"KiB", "MiB", "GiB", "TiB", "PiB"};
  if (bytes < 1024) return concat(bytes, " bytes");
  double value = static_cast<double>(bytes) / 1024;
  std::size_t unit = 0;
  for (; value >= 1024 && unit + 1 < kUnits.size(); ++unit) value /= 1024;
  char text[32];
  // "1.5 GiB", but "96 MiB".
  const double tenths = value * 10;
  const bool is_whole = static_cast<double>(static_cast<std::uint64_t>(value)) == value;
  std::snprintf(text, sizeof text, is_whole || tenths >= 1000 ? "%.0f %s" : "%.1f %s", value,
                kUnits[unit]);
  return text;
}

std::string to_text(const IoLimit& limit) {
  std::string text = limit.device;
  char separator = ':';
  for (const IoKey& key : kIoKeys) {
    if (const auto& value = limit.*key.field) {
      text += concat(separator, key.name, "=", *value);
      separator = ',';
    }
  }
  return text;
}

}  // namespace ddprun::agent
