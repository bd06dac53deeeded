//! The page for those who know OpenCL.

/// The calls of OpenCL 1.0 to 3.0 (the API specification's chapters 4 and 5), and those of the ICD loader.
const CALLS: &str = "
    clGetPlatformIDs clGetPlatformInfo clIcdGetPlatformIDsKHR clGetDeviceIDs clGetDeviceInfo
    clCreateSubDevices clRetainDevice clReleaseDevice clSetDefaultDeviceCommandQueue
    clGetDeviceAndHostTimer clGetHostTimer clCreateContext clCreateContextFromType clRetainContext
    clReleaseContext clGetContextInfo clSetContextDestructorCallback clCreateCommandQueue
    clCreateCommandQueueWithProperties clSetCommandQueueProperty clRetainCommandQueue clReleaseCommandQueue
    clGetCommandQueueInfo clCreateBuffer clCreateBufferWithProperties clCreateSubBuffer clCreateImage
    clCreateImageWithProperties clCreateImage2D clCreateImage3D clCreatePipe clRetainMemObject
    clReleaseMemObject clGetSupportedImageFormats clGetMemObjectInfo clGetImageInfo clGetPipeInfo
    clSetMemObjectDestructorCallback clSVMAlloc clSVMFree clEnqueueSVMFree clEnqueueSVMMemcpy
    clEnqueueSVMMemFill clEnqueueSVMMap clEnqueueSVMUnmap clEnqueueSVMMigrateMem clCreateSampler
    clCreateSamplerWithProperties clRetainSampler clReleaseSampler clGetSamplerInfo
    clCreateProgramWithSource clCreateProgramWithBinary clCreateProgramWithBuiltInKernels
    clCreateProgramWithIL clRetainProgram clReleaseProgram clSetProgramReleaseCallback
    clSetProgramSpecializationConstant clBuildProgram clCompileProgram clLinkProgram
    clUnloadPlatformCompiler clUnloadCompiler clGetProgramInfo clGetProgramBuildInfo clCreateKernel
    clCreateKernelsInProgram clCloneKernel clRetainKernel clReleaseKernel clSetKernelArg
    clSetKernelArgSVMPointer clSetKernelExecInfo clGetKernelInfo clGetKernelArgInfo
    clGetKernelWorkGroupInfo clGetKernelSubGroupInfo clWaitForEvents clGetEventInfo clCreateUserEvent
    clRetainEvent clReleaseEvent clSetUserEventStatus clSetEventCallback clGetEventProfilingInfo clFlush
    clFinish clEnqueueReadBuffer clEnqueueReadBufferRect clEnqueueWriteBuffer clEnqueueWriteBufferRect
    clEnqueueFillBuffer clEnqueueCopyBuffer clEnqueueCopyBufferRect clEnqueueReadImage clEnqueueWriteImage
    clEnqueueFillImage clEnqueueCopyImage clEnqueueCopyImageToBuffer clEnqueueCopyBufferToImage
    clEnqueueMapBuffer clEnqueueMapImage clEnqueueUnmapMemObject clEnqueueMigrateMemObjects
    clEnqueueNDRangeKernel clEnqueueTask clEnqueueNativeKernel clEnqueueMarkerWithWaitList
    clEnqueueBarrierWithWaitList clEnqueueMarker clEnqueueWaitForEvents clEnqueueBarrier
    clGetExtensionFunctionAddressForPlatform clGetExtensionFunctionAddress
";

#[test]
fn every_call_of_the_api_has_its_place_in_the_mapping() {
    let page = include_str!("../../../../../../docs/OPENCL_MAPPING.md");
    let (_, calls) = page.split_once("## Calls").unwrap();
    let (calls, _) = calls.split_once("\n## ").unwrap();
    // Of a row, the first cell says what is mapped.
    let mapped: Vec<&str> =
        calls.lines().filter_map(|line| line.strip_prefix("| ")?.split(" | ").next()).collect();
    let is_mapped = |call: &str| {
        mapped.iter().any(|cell| {
            cell.split('`')
                .any(|word| word == call || word.strip_prefix(call).is_some_and(|rest| rest.starts_with('(')))
        })
    };
    let missing: Vec<&str> = CALLS.split_whitespace().filter(|call| !is_mapped(call)).collect();
    assert_eq!(missing, Vec::<&str>::new());
    // Nothing is mapped that there is not.
    let known: Vec<&str> = CALLS.split_whitespace().collect();
    let words = mapped.iter().flat_map(|cell| cell.split('`')).filter(|word| word.starts_with("cl"));
    let unknown: Vec<&str> = words
        .map(|word| word.split('(').next().unwrap_or(word))
        .filter(|word| !known.contains(word))
        .collect();
    assert_eq!(unknown, Vec::<&str>::new());
}
