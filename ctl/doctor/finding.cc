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

}  // namespace ddprun::doctor
