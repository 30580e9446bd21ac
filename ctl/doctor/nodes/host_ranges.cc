// SPDX-License-Identifier: Apache-2.0
#include "ctl/doctor/nodes/host_ranges.h"

#include <algorithm>
#include <set>

#include "common/log.h"

namespace ddprun::doctor {
namespace {

constexpr std::size_t kMostDigits = 9;

// Names with one start and as many digits behind it, or one without digits.
struct NameKind {
  std::string start;
  std::size_t num_digits = 0;
  std::set<long> numbers;
};

std::string digits_text(long number, std::size_t width) {
  std::string text = std::to_string(number);
  return std::string(width - std::min(width, text.size()), '0') + text;
}

// "01-30,32".
std::string ranges_text(const NameKind& kind) {
  std::string text;
  for (auto at = kind.numbers.begin(); at != kind.numbers.end();) {
    auto last = at;
    for (auto next = std::next(at); next != kind.numbers.end() && *next == *last + 1; ++next) {
      last = next;
    }
    text += (text.empty() ? "" : ",") + digits_text(*at, kind.num_digits);
    if (last != at) text += "-" + digits_text(*last, kind.num_digits);
    at = std::next(last);
  }
  return text;
}

std::string kind_text(const NameKind& kind) {
  if (kind.numbers.empty()) return kind.start;
  if (kind.numbers.size() == 1) {
    return kind.start + digits_text(*kind.numbers.begin(), kind.num_digits);
  }
  return kind.start + "[" + ranges_text(kind) + "]";
}

}  // namespace

std::string host_ranges(const std::vector<std::string>& names, std::size_t most) {
  std::vector<NameKind> kinds;
  for (const std::string& name : names) {
    const std::size_t last = name.find_last_not_of("0123456789");
    std::size_t at = last == std::string::npos ? 0 : last + 1;
    if (at == 0 || name.size() - at > kMostDigits) at = name.size();
    const std::size_t num_digits = name.size() - at;
    const std::string start = name.substr(0, at);
    auto kind = std::find_if(kinds.begin(), kinds.end(), [&](const NameKind& each) {
      return each.start == start && each.num_digits == num_digits;
    });
    if (kind == kinds.end()) kind = kinds.insert(kinds.end(), {start, num_digits, {}});
    if (num_digits > 0) kind->numbers.insert(std::stol(name.substr(at)));
  }
  std::string text;
  std::size_t left_out = 0;
  for (std::size_t i = 0; i < kinds.size(); ++i) {
    if (i < most) {
      text += (i == 0 ? "" : ", ") + kind_text(kinds[i]);
    } else {
      left_out += std::max<std::size_t>(1, kinds[i].numbers.size());
    }
  }
  return left_out == 0 ? text : concat(text, " and ", left_out, " more");
}

}  // namespace ddprun::doctor
