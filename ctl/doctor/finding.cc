// SPDX-License-Identifier: Apache-2.0
#include "ctl/doctor/finding.h"

namespace ddprun::doctor {

const char* to_string(Verdict verdict) {
  switch (verdict) {
    case Verdict::kOk:
      return "ok";
    case Verdict::kSkipped:
      return "skipped";
    case Verdict::kUnknown:
      return "unknown";
    case Verdict::kWarn:
      return "warn";
    case Verdict::kFail:
      return "fail";
  }
  return "unknown";
}

Verdict verdict_named(std::string_view name) {
  for (const Verdict each : {Verdict::kOk, Verdict::kSkipped, Verdict::kWarn, Verdict::kFail}) {
    if (name == to_string(each)) return each;
  }
  return Verdict::kUnknown;
}

}  // namespace ddprun::doctor
