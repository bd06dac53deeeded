#version 450
layout(local_size_x = 32) in;
layout(set = 0, binding = 0, std430) readonly buffer X { uint x[]; };
layout(set = 0, binding = 1, std430) buffer Y { uint y[]; };
void main() { uint i = gl_GlobalInvocationID.x; float f = float(int(x[i] & 1023u) - 512) / 37.0 + 0.013; float g = float(x[i+1u] & 255u) / 31.0 + 0.01; vec3 v = vec3(f, g, f - g), u = vec3(g, 1.5, -f);
 float r[44]; int k = 0; int ex; float mi; 
 r[0]=sin(f); r[1]=cos(f); r[2]=tan(g*0.1); r[3]=asin(sin(f)*0.9); r[4]=acos(cos(f)*0.9); r[5]=atan(f); r[6]=atan(f,g); r[7]=sinh(f*0.1); r[8]=cosh(f*0.1); r[9]=tanh(f); r[10]=asinh(f); r[11]=acosh(1.0+g); r[12]=atanh(sin(f)*0.9); r[13]=pow(g,f*0.2); r[14]=exp(f*0.3); r[15]=log(g); r[16]=exp2(f*0.3); r[17]=log2(g); r[18]=sqrt(g); r[19]=inversesqrt(g); r[20]=abs(f); r[21]=sign(f); r[22]=floor(f); r[23]=trunc(f); r[24]=round(f+0.2); r[25]=roundEven(f); r[26]=ceil(f); r[27]=fract(f); r[28]=mod(f,g); r[29]=modf(f,mi)+mi*3.0; r[30]=clamp(f,-1.0,g); r[31]=mix(f,g,0.3); r[32]=step(g,f); r[33]=smoothstep(0.0,3.0,f); r[34]=float(isnan(f)); r[35]=fma(f,g,1.0); r[36]=frexp(f,ex)+float(ex); r[37]=ldexp(f,int(x[i]&7u)-3); r[38]=length(v)+distance(v,u); r[39]=dot(v,u); r[40]=cross(v,u).y+normalize(v).z; r[41]=faceforward(v,u,v).x+reflect(v,normalize(u)).y; r[42]=refract(normalize(v),normalize(u),0.5).x; r[43]=radians(f)+degrees(g)+max(f,g)-min(f,1.0);
 for (k = 0; k < 44; k++) y[i*44u+uint(k)] = floatBitsToUint(r[k]); }
