// The stand-in libnvrtc.so: hands kernel text to the machine's compile step. The "CUBIN" and the "PTX" that a program
// receives are the same text, which the stand-in driver loads.
#include <cstring>
#include <string>
#include <vector>

#include "../machine/machine.h"

struct Program {
  std::string source, name;
  std::vector<std::string> expressions;
  cuemu::Compiled compiled;
};
enum { SUCCESS = 0, INVALID_INPUT = 3, COMPILATION = 6, NAME_EXPRESSION_NOT_VALID = 10 };

CUEMU_API int nvrtcVersion(int* major, int* minor) { return *major = 13, *minor = 0, SUCCESS; }
CUEMU_API const char* nvrtcGetErrorString(int r) { return r == SUCCESS ? "NVRTC_SUCCESS" : r == COMPILATION ? "NVRTC_ERROR_COMPILATION" : "NVRTC_ERROR"; }
CUEMU_API int nvrtcGetNumSupportedArchs(int* n) { return *n = 3, SUCCESS; }
CUEMU_API int nvrtcGetSupportedArchs(int* archs) { return archs[0] = 75, archs[1] = 80, archs[2] = 90, SUCCESS; }

CUEMU_API int nvrtcCreateProgram(Program** p, const char* source, const char* name, int headers, const char* const*, const char* const*) {
  if (headers) return INVALID_INPUT;  // kernels include nothing
  *p = new Program{source, name ? name : "kernel.cu", {}, {}};
  return SUCCESS;
}
CUEMU_API int nvrtcDestroyProgram(Program** p) { return delete *p, *p = nullptr, SUCCESS; }
CUEMU_API int nvrtcAddNameExpression(Program* p, const char* e) { return p->expressions.push_back(e), SUCCESS; }
CUEMU_API int nvrtcGetLoweredName(Program* p, const char* e, const char** name) {
  for (auto& x : p->expressions)
    if (x == e) return *name = x.c_str(), SUCCESS;
  return NAME_EXPRESSION_NOT_VALID;
}
CUEMU_API int nvrtcCompileProgram(Program* p, int n, const char* const* options) {
  p->compiled = cuemu::compile(p->source, p->name, std::vector<std::string>(options, options + n), p->expressions);
  return p->compiled.ok ? SUCCESS : COMPILATION;
}
CUEMU_API int nvrtcGetProgramLogSize(Program* p, size_t* n) { return *n = p->compiled.log.size() + 1, SUCCESS; }
CUEMU_API int nvrtcGetProgramLog(Program* p, char* s) { return strcpy(s, p->compiled.log.c_str()), SUCCESS; }
CUEMU_API int nvrtcGetPTXSize(Program* p, size_t* n) { return *n = p->compiled.image.size() + 1, SUCCESS; }
CUEMU_API int nvrtcGetPTX(Program* p, char* s) { return strcpy(s, p->compiled.image.c_str()), SUCCESS; }
CUEMU_API int nvrtcGetCUBINSize(Program* p, size_t* n) { return nvrtcGetPTXSize(p, n); }
CUEMU_API int nvrtcGetCUBIN(Program* p, char* s) { return nvrtcGetPTX(p, s); }
