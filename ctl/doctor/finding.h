// SPDX-License-Identifier: Apache-2.0
// The result of a check of `ddprunctl doctor`. docs/doctor.md has the checks by name.
#pragma once

#include <algorithm>
#include <array>
#include <cstddef>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace ddprun::doctor {

// Ordered by how much a person has to do about it.
enum class Verdict {
  kOk,
  kSkipped,  // there is nothing to look at here, or this user has no right to look
  kUnknown,  // no answer in time, or none that makes sense
  kWarn,     // jobs run, slower or less safely than they could
  kFail,     // jobs will fail
};
inline constexpr std::array kVerdictNames = {"ok", "skipped", "unknown", "warn", "fail"};

inline const char* to_string(Verdict verdict) {
  return kVerdictNames.at(static_cast<std::size_t>(verdict));
}
// The inverse of to_string(); kUnknown for any other text.
inline Verdict verdict_named(std::string_view name) {
  const auto found = std::ranges::find(kVerdictNames, name);
  return found == kVerdictNames.end() ? Verdict::kUnknown
                                      : static_cast<Verdict>(found - kVerdictNames.begin());
}

// A check's own result. The table of checks has the rest.
struct Outcome {
  Verdict verdict = Verdict::kOk;
  std::string seen;         // "4096"; for kSkipped and kUnknown: why nothing is known
  std::string wanted = {};  // "at least 16 MiB"
  std::string fix = {};     // a command or a step that corrects it, if one is needed
  // With several nodes: the ranks of the nodes that it concerns. Empty: all of them.
  std::vector<int> nodes = {};
};

struct Finding {
  std::string check, group;
  Outcome outcome;
  std::string why;         // why it matters
  std::string where = {};  // for a check of one node that ran on several: "gpu[01-30]", "all nodes"
};

inline Outcome ok(std::string seen, std::string wanted = {}) {
  return {Verdict::kOk, std::move(seen), std::move(wanted), {}};
}
inline Outcome skipped(std::string reason) { return {Verdict::kSkipped, std::move(reason)}; }
inline Outcome unknown(std::string reason) { return {Verdict::kUnknown, std::move(reason)}; }

// An outcome that is not as wanted, with what corrects it.
inline Outcome with_fix(Verdict verdict, Outcome seen, std::string fix) {
  seen.verdict = verdict;
  seen.fix = std::move(fix);
  return seen;
}
inline Outcome warned(Outcome seen, std::string fix) {
  return with_fix(Verdict::kWarn, std::move(seen), std::move(fix));
}
inline Outcome failed(Outcome seen, std::string fix) {
  return with_fix(Verdict::kFail, std::move(seen), std::move(fix));
}

}  // namespace ddprun::doctor
