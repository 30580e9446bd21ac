// SPDX-License-Identifier: Apache-2.0
#include "ctl/submit/pod_lines.h"

#include <cstdio>
#include <ctime>

namespace ddprun::submit {

std::int64_t log_time_of(std::string_view text) {
  const std::string copy(text);
  std::tm parts{};
  const char* at = ::strptime(copy.c_str(), "%Y-%m-%dT%H:%M:%S", &parts);
  if (at == nullptr) return -1;
  std::int64_t ns = 0;
  if (*at == '.') {
    std::int64_t unit = 100'000'000;
    for (++at; *at >= '0' && *at <= '9'; ++at, unit /= 10) ns += (*at - '0') * unit;
  }
  int offset = 0;
  if (std::string_view(at) != "Z") {
    int hours = 0, minutes = 0, read = 0;
    const bool is_offset = std::sscanf(at, "%3d:%2d%n", &hours, &minutes, &read) == 2;
    if (!is_offset || at[read] != '\0') return -1;
    offset = hours * 3'600 + (*at == '-' ? -minutes : minutes) * 60;
  }
  return (static_cast<std::int64_t>(::timegm(&parts)) - offset) * 1'000'000'000 + ns;
}

std::string PodLines::take(std::string_view text) {
  std::string all;
  held_ += text;
  std::size_t begin = 0;
  for (std::size_t end; (end = held_.find('\n', begin)) != std::string::npos; begin = end + 1) {
    all += new_of(std::string_view(held_).substr(begin, end - begin));
  }
  held_.erase(0, begin);
  return all;
}

std::string PodLines::end() {
  std::string last = held_.empty() ? "" : new_of(held_);
  held_.clear();
  before_ = now_;
  again_.clear();
  return last;
}

std::string PodLines::new_of(std::string_view line) {
  const std::size_t pod_end = line.starts_with('[') ? line.find("] ") : std::string_view::npos;
  if (pod_end == std::string_view::npos) return std::string(line) + "\n";
  const std::string pod(line.substr(0, pod_end + 2));
  const std::string_view rest = line.substr(pod_end + 2);
  const std::size_t time_end = rest.find(' ');
  const std::int64_t when = log_time_of(rest.substr(0, time_end));
  if (when < 0) return std::string(line) + "\n";
  // The order of a pod's lines is not quite that of their times: they are stdout's and stderr's.
  if (const auto old = before_.find(pod); old != before_.end()) {
    if (when < old->second.latest) return {};
    if (when == old->second.latest && again_[pod]++ < old->second.num_then) return {};
  }
  Mark& mark = now_[pod];
  if (when > mark.latest) mark = {when, 0};
  if (when == mark.latest) ++mark.num_then;
  const std::string_view said = time_end == std::string_view::npos ? "" : rest.substr(time_end + 1);
  return pod + std::string(said) + "\n";
}

}  // namespace ddprun::submit
